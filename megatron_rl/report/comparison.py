"""Several runs side by side: final numbers, and the configuration keys in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from megatron_rl.report.phases import STEP, phase_shares
from megatron_rl.report.run import Run
from megatron_rl.report.series import mean_tail, series

UNCOMPARED_KEYS = frozenset({"trainer.experiment_name", "trainer.output_dir", "launcher.master_port"})
"""Names and places, which differ in any two runs."""


@dataclass(frozen=True, slots=True)
class FinalNumber:
    """One column of the comparison."""

    title: str
    unit: str
    value: Callable[[Run], float | None]


def final_numbers() -> list[FinalNumber]:
    """What a run amounts to, in the order of the table."""
    return [
        FinalNumber("steps", "", lambda run: float(run.last_step)),
        FinalNumber("reward, last 5 steps", "", lambda run: mean_tail(series(run.records, "reward/mean").finite())),
        FinalNumber("held-out accuracy", "", lambda run: mean_tail(series(run.records, "val/accuracy/mean").finite(), 1)),
        FinalNumber("loss", "nats", lambda run: mean_tail(series(run.records, "sft/nll_per_token").finite())),
        FinalNumber("step time, median", "s", lambda run: _median(run, STEP)),
        FinalNumber("throughput, median", "tokens/s", lambda run: _median(run, "perf/tokens_per_second")),
        FinalNumber("training time", "s", lambda run: sum(series(run.records, STEP).finite()) or None),
        FinalNumber("peak memory", "GiB", _peak_memory_gib),
        FinalNumber("mismatch, last 5 steps", "nats", lambda run: mean_tail(series(run.records, _MISMATCH).finite())),
    ]


def differing_keys(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Dotted key -> its value in each run, where they are not all equal; an absent key reads as an em dash."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    values = {key: [run.config.get(key, "—") for run in runs] for key in keys if key not in UNCOMPARED_KEYS}
    return {key: row for key, row in values.items() if len(set(row)) > 1}


def slowest_phase(run: Run) -> str:
    """Name and share of the phase with most of the time; empty where nothing is timed."""
    shares = phase_shares(run.records)
    return f"{shares[0].phase} {shares[0].share_frac:.0%}" if shares else ""


_MISMATCH = "rollout_corr/logprob_diff_mean"


def _median(run: Run, name: str) -> float | None:
    values = series(run.records, name).finite()
    return median(values) if values else None


def _peak_memory_gib(run: Run) -> float | None:
    units = {"_gib": 1.0, "_mib": 2.0**-10, "_bytes": 2.0**-30}
    peaks = [
        value * scale
        for record in run.records
        for name, value in record.items()
        if value is not None and name.startswith("memory/")
        for suffix, scale in units.items()
        if name.endswith(suffix)
    ]
    return max(peaks, default=None)
