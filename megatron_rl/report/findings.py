"""The health rules of a live run, replayed over its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_rl.observability.health import RULES, HealthMonitor, mismatch_rule
from megatron_rl.report.run import Run
from megatron_rl.report.series import Record, metric_names, series, step_of
from megatron_rl.types.metrics import Metric

MISMATCH_KEY = "rollout.mismatch_warn_threshold"

_COUNTS = {
    "actor/update_skipped": "optimizer steps were skipped because the gradient was not finite",
    "reward/errors": "samples could not be scored",
    "reward/timeouts": "samples ran out of scoring time",
}
"""Counters that should stay 0 over a whole run."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to look at. Example: ``Finding(12, "response_length/clip_ratio is 0.95 ...")``."""

    step: int
    """Where it first showed."""
    text: str


def findings(run: Run) -> list[Finding]:
    """Warnings in the order they came up."""
    found = [*_rule_findings(run), *_counter_findings(run.records), *_gap_findings(run.records)]
    return sorted(found, key=lambda finding: finding.step)


def mismatch_threshold(run: Run) -> float | None:
    """Limit of ``rollout_corr/logprob_diff_mean`` in the run's configuration, nats."""
    text = run.config.get(MISMATCH_KEY, "null")
    return None if text == "null" else float(text)


def _rule_findings(run: Run) -> list[Finding]:
    texts: list[str] = []
    threshold = mismatch_threshold(run)
    monitor = HealthMonitor(texts.append, [*RULES, *([] if threshold is None else [mismatch_rule(threshold)])])
    found = []
    for record in run.records:
        monitor.observe({name: Metric(value) for name, value in record.items() if value is not None})
        found += [Finding(step_of(record), text) for text in texts]
        texts.clear()
    return found


def _counter_findings(records: Sequence[Record]) -> list[Finding]:
    found = []
    for name, meaning in _COUNTS.items():
        counts = series(records, name)
        positive = [(step, value) for step, value in zip(counts.steps, counts.values, strict=True) if value]
        if positive:
            total = sum(value for _, value in positive)
            found.append(Finding(positive[0][0], f"{name}: {total:g} in {len(positive)} steps; {meaning}"))
    return found


def _gap_findings(records: Sequence[Record]) -> list[Finding]:
    gaps = {
        name: [step_of(record) for record in records if name in record and record[name] is None]
        for name in metric_names(records)
    }
    return [
        Finding(steps[0], f"{name} was not a finite number in {len(steps)} {'step' if len(steps) == 1 else 'steps'}")
        for name, steps in gaps.items()
        if steps
    ]
