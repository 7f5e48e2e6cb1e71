"""What a benchmarked step amounts to: one JSON object and one Markdown section a variant, and a record for the estimator.

``python -m benchmarks.step_report STEP.json > STEP.md`` writes the page again from the data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.bare_rollout import BareRollout
from benchmarks.harness import commit
from benchmarks.step_figures import Ceilings, PhaseFigures, Spread, other_share, phase_figures
from benchmarks.step_profile import PhaseProfile, read_profiles
from benchmarks.step_run import Measured
from megatron_rl.estimator.measurements import Measurement, append_measurement
from megatron_rl.observability.profiler import PROFILE_FOLDER
from megatron_rl.sweep.probe_record import MeasuredJob, MeasuredMemory, measurement_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Figures of one variant; everything a reader needs to repeat and judge it."""

    name: str
    command: str
    commit: str
    date: str
    device: str
    num_devices: int
    versions: Mapping[str, str]
    settings: tuple[str, ...]
    """Overrides, the work left out."""
    samples: int
    prompt_tokens: int
    response_law: str
    num_steps: int
    tokens_per_step: float
    """Prompt and response, mean."""
    step_s: Spread
    other_share: Spread
    """Of the step that neither generates nor scores nor trains."""
    phases: tuple[PhaseFigures, ...]
    device_peak_gib: float | None
    """Most that the driver counted for the fullest card; None on a CPU."""
    ceilings: Ceilings
    bare: BareRollout | None
    rollout_vs_bare: float | None
    """Generated tokens a second of the rollout phase over those of vLLM alone on the same requests; None if not measured."""
    profiles: tuple[PhaseProfile, ...] = ()
    """Where the time of the actor's scoring and update went, in one step more."""

    @classmethod
    def of(cls, measured: Measured, ceilings: Ceilings, bare: BareRollout | None, command: str) -> StepReport:
        """Evaluate what a variant left."""
        memory = MeasuredMemory.of_ranks(measured.memory.ranks.values())
        documents = [document for record in measured.records for document in measured.documents[int(record["step"] or 0)]]
        phases = phase_figures(
            measured.config,
            measured.records,
            measured.documents,
            num_ranks=measured.num_ranks,
            ceilings=ceilings,
            peaks_gib=memory.allocated_gib,
        )
        return cls(
            name=measured.variant.name,
            command=command,
            commit=commit(),
            date=date.today().isoformat(),
            device=measured.device,
            num_devices=measured.num_ranks,
            versions={name: found for name in ("torch", "vllm", "megatron-core") if (found := _version(name))},
            settings=measured.variant.settings,
            samples=measured.workload.prompts * measured.workload.samples,
            prompt_tokens=measured.workload.prompt_tokens,
            response_law=measured.workload.law,
            num_steps=len(measured.records),
            tokens_per_step=sum(document.length for document in documents) / len(measured.records),
            step_s=Spread.of([record["timing_s/step"] or 0.0 for record in measured.records]),
            other_share=other_share(measured.records),
            phases=tuple(phases),
            device_peak_gib=memory.device_gib,
            ceilings=ceilings,
            bare=bare,
            rollout_vs_bare=_against_bare(phases, bare, measured.config.rollout.data_parallel_size or 1),
            profiles=tuple(read_profiles(measured.run_dir / PROFILE_FOLDER)),
        )

    def markdown(self) -> str:
        """One section."""
        ceilings = self.ceilings
        lines = [
            f"## {self.name}",
            "",
            f"{self.num_devices} x {self.device}; {self.samples} samples a step, prompts of {self.prompt_tokens} tokens, "
            f"responses {self.response_law}: {self.tokens_per_step:,.0f} tokens a step. Median (lowest - highest) of "
            f"{self.num_steps} steps: {_spread(self.step_s)} s, of which {_percent(self.other_share)} neither generates nor "
            f"scores nor trains. Ceilings of this run: {_rate(ceilings.matmul_flops_per_s, 'FLOP/s', 0)}, "
            f"{_rate(ceilings.copy_bytes_per_s, 'B/s', 2)} copied.",
            "",
            "| phase | seconds | of step | tokens/s | MFU | with recompute | read bandwidth | peak GiB |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *(_row(phase) for phase in self.phases),
        ]
        if self.device_peak_gib is not None:
            lines += ["", f"Fullest card, as the driver counts: {self.device_peak_gib:.1f} GiB."]
        if self.bare is not None and self.rollout_vs_bare is not None:
            rates = ", ".join(f"{t / s:,.0f}" for t, s in zip(self.bare.tokens, self.bare.seconds, strict=True))
            lines += ["", f"vLLM alone, same requests: {rates} tokens/s; the rollout reaches {self.rollout_vs_bare:.1%} of it."]
        settings = f" Settings: `{' '.join(self.settings)}`." if self.settings else ""
        lines += ["", f"Commit {self.commit}, {self.date}. `{self.command}`{settings}"]
        for profile in self.profiles:
            lines += ["", profile.markdown()]
        return "\n".join(lines) + "\n"

    def store(self, path: Path, measured: Measured) -> None:
        """Add the measurement to the estimator's file ``path``; says so where the card or shape has no name there."""
        record = _measurement(measured, self)
        if record is None:
            print(f"nothing stored: {self.device} or this shape is not in the estimator's catalogue", flush=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        append_measurement(path, record)


def keep_report(out: Path, report: StepReport) -> None:
    """Put a variant into ``out``.json and ``out``.md; an earlier one of the same name goes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    file = out.with_suffix(".json")
    earlier = read_reports(file) if file.exists() else ()
    reports = [*(one for one in earlier if one.name != report.name), report]
    file.write_text(json.dumps([asdict(one) for one in reports], indent=1) + "\n")
    out.with_suffix(".md").write_text(page(reports))


def read_reports(file: Path) -> tuple[StepReport, ...]:
    """What :func:`keep_report` left."""
    return TypeAdapter(tuple[StepReport, ...]).validate_json(file.read_text())


def page(reports: Sequence[StepReport]) -> str:
    """All variants as Markdown."""
    return "\n".join(["# RL step by phase\n", *(report.markdown() for report in reports)])


def _measurement(measured: Measured, report: StepReport) -> Measurement | None:
    lengths = [d.length for record in measured.records for d in measured.documents[int(record["step"] or 0)]]
    job = MeasuredJob(
        config=measured.config,
        records=measured.records,
        num_ranks=measured.num_ranks,
        device=measured.device,
        memory=measured.memory,
    )
    try:
        record = measurement_of(
            job,
            name=f"step_{report.name.replace(' ', '_')}_{report.date}",
            source=f"{report.command}, {report.num_steps} steps",
            date=report.date,
            squared_tokens=sum(length * length for length in lengths) / len(lengths),
        )
    except ValueError:  # a card or a shape that the estimator does not know
        return None
    rates = {
        "matmul_flops_per_s": report.ceilings.matmul_flops_per_s,
        "memory_bytes_per_s": report.ceilings.copy_bytes_per_s,
    }
    return record.model_copy(update={"yardsticks": rates})


def _against_bare(phases: list[PhaseFigures], bare: BareRollout | None, engines: int) -> float | None:
    if bare is None:
        return None
    ours = next(phase.tokens_per_s for phase in phases if phase.phase == "gen")
    return None if ours is None else ours / (bare.tokens_per_s * engines)


def _row(phase: PhaseFigures) -> str:
    cells = [
        phase.phase,
        _spread(phase.seconds),
        f"{phase.share_frac:.1%}",
        "" if phase.tokens_per_s is None else f"{phase.tokens_per_s:,.0f}",
        *("" if frac is None else f"{frac:.1%}" for frac in (phase.mfu, phase.mfu_with_recompute, phase.read_frac)),
        "" if phase.peak_gib is None else f"{phase.peak_gib:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _spread(spread: Spread) -> str:
    return f"{spread.median:.3g} ({spread.low:.3g} - {spread.high:.3g})"


def _rate(per_second: float, unit: str, decimals: int) -> str:
    """In tera, or in giga where that is below one. Example: ``691 TFLOP/s``."""
    scaled, prefix, places = (per_second / 1e12, "T", decimals) if per_second >= 1e12 else (per_second / 1e9, "G", 1)
    return f"{scaled:,.{places}f} {prefix}{unit}"


def _percent(spread: Spread) -> str:
    return f"{spread.median:.1%} ({spread.low:.1%} - {spread.high:.1%})"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ImportError:
        return None


if __name__ == "__main__":
    print(page(read_reports(Path(sys.argv[1]))), end="")
