"""Where the time of a step goes, and which phase is to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from megatron_rl.report.series import Record, metric_names, series, step_of

PREFIX = "timing_s/"
STEP = "timing_s/step"
TESTING = "timing_s/testing"
"""Validation: timed, but not part of the step."""
PIPELINE_ORDER = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
    "switch",
    "save_checkpoint",
    "other",
)
"""Phases in the order a step runs them; phases unknown here follow."""

_SLOW_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """One phase over the whole run. Example: ``PhaseShare("gen", 0.21, 0.2, 0.4, 0.27)``."""

    phase: str
    mean_s: float
    """Seconds a step, averaged over all timed steps."""
    median_s: float
    max_s: float
    share_frac: float
    """Of the summed step time."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that took much longer than the median, and the phase that grew most."""

    step: int
    step_s: float
    excess_s: float
    phase: str
    phase_excess_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds by phase over the steps; many steps are averaged into bins."""

    phases: list[str]
    steps: list[tuple[int, int]]
    """First and last step of each bin."""
    seconds: list[list[float]]
    """One list a phase, one mean a bin."""


def timed_records(records: Sequence[Record]) -> list[Record]:
    """Records of steps whose duration is known."""
    return [record for record in records if record.get(STEP) is not None]


def phase_names(records: Sequence[Record]) -> list[str]:
    """Phases inside the step, in pipeline order."""
    names = [name.removeprefix(PREFIX) for name in metric_names(records) if name.startswith(PREFIX)]
    names = [name for name in names if f"{PREFIX}{name}" not in (STEP, TESTING)]
    return sorted(names, key=lambda name: PIPELINE_ORDER.index(name) if name in PIPELINE_ORDER else len(PIPELINE_ORDER))


def phase_shares(records: Sequence[Record]) -> list[PhaseShare]:
    """Each phase's part of the step, the largest first."""
    timed = timed_records(records)
    total_s = sum(series(timed, STEP).finite())
    shares = []
    for phase in phase_names(timed):
        seconds = [_seconds(record, phase) for record in timed]
        summed = sum(seconds)
        shares.append(
            PhaseShare(phase, summed / len(timed), median(seconds), max(seconds), summed / total_s if total_s else 0.0)
        )
    return sorted(shares, key=lambda share: -share.share_frac)


def slow_steps(records: Sequence[Record], max_count: int = 5) -> list[SlowStep]:
    """The slowest of the steps beyond 1.5 times the median, slowest first."""
    timed = timed_records(records)
    if len(timed) < 3:
        return []
    usual_s = median(series(timed, STEP).finite())
    usual_by_phase = {phase: median(_seconds(record, phase) for record in timed) for phase in phase_names(timed)}
    found = []
    for record in timed:
        step_s = record[STEP]
        if step_s is None or step_s <= _SLOW_FACTOR * usual_s:
            continue
        growth = {phase: _seconds(record, phase) - usual for phase, usual in usual_by_phase.items()}
        phase = max(growth, key=lambda name: growth[name])
        found.append(SlowStep(step_of(record), step_s, step_s - usual_s, phase, growth[phase]))
    return sorted(found, key=lambda slow: -slow.step_s)[:max_count]


def timeline(records: Sequence[Record], max_bins: int = 120) -> Timeline:
    """Stacked time: at most ``max_bins`` bins of as many steps each."""
    timed = timed_records(records)
    phases = phase_names(timed)
    per_bin = max(1, -(-len(timed) // max_bins))
    bins = [timed[i : i + per_bin] for i in range(0, len(timed), per_bin)]
    seconds = [[sum(_seconds(record, phase) for record in part) / len(part) for part in bins] for phase in phases]
    return Timeline(phases, [(step_of(part[0]), step_of(part[-1])) for part in bins], seconds)


def _seconds(record: Record, phase: str) -> float:
    """Time of a phase in a step; a phase that did not run took none."""
    return record.get(f"{PREFIX}{phase}") or 0.0
