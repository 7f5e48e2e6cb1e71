"""The numbers and texts inside a report, cut to a size that a phone still opens at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from megatron_rl.report.findings import mismatch_threshold
from megatron_rl.report.panels import PanelGroup
from megatron_rl.report.phases import PIPELINE_ORDER, timeline
from megatron_rl.report.run import Run, Sample
from megatron_rl.report.series import Series, metric_names, series, step_of, thin

MAX_NUMBERS = 60_000
"""Values in all curves of all runs; about half a megabyte."""
MIN_POINTS, MAX_POINTS = 24, 1_500
"""Points of one curve."""
MAX_SAMPLE_CHARS = 400_000
"""Characters of all samples of all runs."""
MAX_TEXT_CHARS = 4_000
"""Characters of one prompt or one response."""
MAX_TIMELINE_NUMBERS = 16_000


@dataclass(frozen=True, slots=True)
class ChosenSamples:
    """Samples that fit, and how many there were."""

    samples: list[Sample]
    num_recorded: int


def payload_json(runs: Sequence[Run], groups: Sequence[PanelGroup]) -> str:
    """JSON for the page's script, safe inside a ``<script>`` element."""
    chosen = [choose_samples(run.samples, MAX_SAMPLE_CHARS // len(runs)) for run in runs]
    content = {
        "phase_order": PIPELINE_ORDER,
        "groups": [asdict(group) for group in groups],
        "runs": [_run(run, len(runs), _max_points(runs)) for run in runs],
        "samples": [_sample(i, sample) for i, part in enumerate(chosen) for sample in part.samples],
        "num_samples_recorded": sum(part.num_recorded for part in chosen),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # "</script" and "<!--" would end or change the element; lone surrogates cannot be encoded.
    return text.replace("<", "\\u003c").encode("utf-8", errors="replace").decode("utf-8")


def choose_samples(samples: Sequence[Sample], max_chars: int) -> ChosenSamples:
    """Whole steps, spread evenly, the first and the last among them, as many as fit."""
    steps = sorted({sample.step for sample in samples})
    average = sum(_shown_chars(sample) for sample in samples) / max(1, len(steps))
    count = len(steps) if not average else min(len(steps), max(2, int(max_chars / average)))
    kept = {steps[round(i * (len(steps) - 1) / max(1, count - 1))] for i in range(count)} if steps else set()
    chosen, used = [], 0
    for sample in samples:
        used += _shown_chars(sample) if sample.step in kept else 0
        if sample.step in kept and used <= max_chars:
            chosen.append(sample)
    return ChosenSamples(chosen, len(samples))


def _max_points(runs: Sequence[Run]) -> int:
    """Points a curve may have so that all of them fit."""
    num_curves = sum(len(metric_names(run.records)) for run in runs)
    return max(MIN_POINTS, min(MAX_POINTS, MAX_NUMBERS // max(1, num_curves)))


def _run(run: Run, num_runs: int, max_points: int) -> dict[str, object]:
    steps = [step_of(record) for record in run.records]
    curves = {name: series(run.records, name) for name in metric_names(run.records)}
    bins = timeline(run.records, max_bins=max(20, min(120, MAX_TIMELINE_NUMBERS // (12 * num_runs))))
    return {
        "label": run.label,
        "resumed": run.resumed_at,
        "threshold": mismatch_threshold(run),
        "steps": steps if len(steps) <= max_points else [],
        "metrics": {name: _curve(curve, steps, max_points) for name, curve in curves.items()},
        "timeline": {
            "phases": bins.phases,
            "bins": bins.steps,
            "seconds": [[_short(value) for value in row] for row in bins.seconds],
        },
    }


def _curve(curve: Series, run_steps: list[int], max_points: int) -> dict[str, object]:
    """``v`` alone where the curve has a value at each of the run's steps, else with its own steps ``s``."""
    thinned = thin(curve, max_points)
    values = [_short(value) for value in thinned.values]
    return {"v": values} if thinned.steps == run_steps else {"s": thinned.steps, "v": values}


def _short(value: float | None) -> float | int | None:
    """Five significant digits, which is more than a screen shows."""
    if value is None:
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _sample(run_index: int, sample: Sample) -> list[object]:
    return [
        run_index,
        sample.step,
        None if sample.reward is None else _short(sample.reward),
        sample.finish_reason,
        _clip(sample.prompt),
        _clip(sample.response),
        sample.uid,
    ]


def _clip(text: str) -> str:
    """The beginning and the end of a long text: answers stand at the end."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _shown_chars(sample: Sample) -> int:
    overhead = 60
    return overhead + min(len(sample.prompt), MAX_TEXT_CHARS) + min(len(sample.response), MAX_TEXT_CHARS) + len(sample.uid)
