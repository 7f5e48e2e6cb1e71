"""Means and spreads over the steps of a run, its warm-up left out. Plain numbers from ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from megatron_rl.config.run_files import METRICS_FILE
from megatron_rl.observability.sinks import Record, read_metrics

STEP, TOKENS, REWARD = "timing_s/step", "perf/total_num_tokens", "reward/mean"
RESERVED = "perf/cuda_memory_reserved_gb"
_PREFIX, _OUTSIDE = "timing_s/", ("timing_s/step", "timing_s/testing")
_MEMORY_PREFIX, _MEMORY_SUFFIX = "memory/", "_gib"


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation. Example: ``Spread(2.0, 0.1)``; one value has no spread."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase. Example: ``PhaseTime("gen", Spread(1.2, 0.1), 0.4)``."""

    phase: str
    seconds: Spread
    """A step; 0 counts where the phase did not run."""
    share_frac: float
    """Of the mean step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatistics:
    """What the measured steps of a run amount to."""

    num_steps: int
    step_s: Spread
    phases: tuple[PhaseTime, ...]
    """Longest first; their means add up to that of the step."""
    tokens_per_step: float
    tokens_per_s: float
    """All tokens over all seconds, not the mean of the steps' rates."""
    memory_gib: Mapping[str, float]
    """Phase -> peak of the fullest rank over all steps, the warm-up included: it has to fit as well."""
    reserved_gib: float | None
    """Most that the GPU's allocator held, fragments included; None on a CPU."""
    reward: Trend | None
    total_s: float
    """Of all steps, warm-up and validation included."""

    @property
    def steps_per_s(self) -> float:
        """Of the whole job."""
        return 1 / self.step_s.mean

    @property
    def peak_gib(self) -> float | None:
        """What a card must have: all that was reserved; on a CPU the fullest phase of the fullest rank."""
        return max(self.memory_gib.values(), default=None) if self.reserved_gib is None else self.reserved_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A straight line through values by step, least squares."""

    num_values: int
    first_mean: float
    """Of the first fifth."""
    last_mean: float
    """Of the last fifth."""
    slope: float
    """Per step."""
    standard_error: float | None
    """Of the slope; None below three values."""

    @property
    def t(self) -> float | None:
        """Slope over its standard error; None where that is unknown or zero."""
        return self.slope / self.standard_error if self.standard_error else None


def read_attempts(experiment: Path) -> list[list[Record]]:
    """Steps of every attempt of an experiment, oldest first; validation before the first step is none."""
    folders = sorted(path.parent for path in experiment.glob(f"*/{METRICS_FILE}") if not path.parent.is_symlink())
    attempts = [[record for record in read_metrics(folder / METRICS_FILE) if STEP in record] for folder in folders]
    return [records for records in attempts if records]


def step_statistics(attempts: Sequence[Sequence[Record]], warmup_steps: int) -> StepStatistics | None:
    """Statistics over the attempts of one run; None where no step is left after the warm-up.

    Args:
        attempts: steps of each attempt, oldest first; of a step computed twice the newer record counts.
        warmup_steps: first steps of each attempt that are left out: compilation, caches and allocators warm up again.
    """
    every = [record for records in attempts for record in records]
    by_step = {record["step"]: record for records in attempts for record in records[warmup_steps:]}
    steps = [record for record in by_step.values() if record[STEP] is not None]
    if not steps:
        return None
    step_s = Spread.of([_value(record, STEP) for record in steps])
    tokens = [_value(record, TOKENS) for record in steps]
    rewards = [(_value(record, "step"), _value(record, REWARD)) for record in steps if record.get(REWARD) is not None]
    return StepStatistics(
        num_steps=len(steps),
        step_s=step_s,
        phases=_phases(steps, step_s.mean),
        tokens_per_step=fmean(tokens),
        tokens_per_s=sum(tokens) / (step_s.mean * len(steps)),
        memory_gib=_memory(every),
        reserved_gib=max((value for record in every if (value := record.get(RESERVED)) is not None), default=None),
        reward=trend(rewards) if rewards else None,
        total_s=sum(_value(record, name) for record in every for name in _OUTSIDE),
    )


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """Fit ``value = a + slope * step``; the slope's standard error is sqrt(residuals / (n - 2) / sum (x - mean)^2)."""
    points = sorted(points)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_mean, y_mean = fmean(xs), fmean(ys)
    width = sum((x - x_mean) ** 2 for x in xs)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in points) / width if width else 0.0
    residuals = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    fifth = max(1, len(points) // 5)
    return Trend(
        num_values=len(points),
        first_mean=fmean(ys[:fifth]),
        last_mean=fmean(ys[-fifth:]),
        slope=slope,
        standard_error=sqrt(residuals / (len(points) - 2) / width) if len(points) > 2 else None,
    )


def _phases(steps: Sequence[Record], step_mean_s: float) -> tuple[PhaseTime, ...]:
    names = dict.fromkeys(name for record in steps for name in record if name.startswith(_PREFIX) and name not in _OUTSIDE)
    found = []
    for name in names:
        seconds = Spread.of([_value(record, name) for record in steps])
        found.append(PhaseTime(name.removeprefix(_PREFIX), seconds, seconds.mean / step_mean_s))
    return tuple(sorted(found, key=lambda phase: -phase.seconds.mean))


def _memory(records: Sequence[Record]) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for record in records:
        for name in record:
            if name.startswith(_MEMORY_PREFIX) and name.endswith(_MEMORY_SUFFIX):
                phase = name.removeprefix(_MEMORY_PREFIX).removesuffix(_MEMORY_SUFFIX)
                peaks[phase] = max(_value(record, name), peaks.get(phase, 0.0))
    return peaks


def _value(record: Record, name: str) -> float:
    """The number; 0 where it was not recorded."""
    return record.get(name) or 0.0
