"""One point of a sweep: what was measured, or what the model says. The two are never mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from megatron_rl.sweep.step_statistics import StepStatistics

Source = Literal["measured", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """Example: ``PointResult(name="gpus_2", source="measured", settings={"gpus": "2"}, num_ranks=2, steps_per_s=0.5, ...)``."""

    name: str
    source: Source
    settings: Mapping[str, str]
    num_ranks: int
    """GPUs, or CPU ranks."""
    num_steps: int
    """Measured; 0 for the model."""
    step_s: float
    """Mean."""
    step_std_s: float | None
    tokens_per_step: float
    tokens_per_s: float
    """Prompt and response, of the whole job."""
    phase_s: Mapping[str, float]
    """Phase -> mean seconds a step, by the timers' names."""
    phase_std_s: Mapping[str, float | None]
    memory_gib: Mapping[str, float]
    """Phase -> peak of the fullest rank."""
    peak_gib: float | None
    """What a card must have."""
    gpu_hours: float | None
    """That the point itself took; None for the model."""
    price_per_hour: float | None
    reward: float | None = None
    """Mean over the last fifth of the steps."""
    note: str = ""

    @property
    def steps_per_s(self) -> float:
        """Of the whole job."""
        return 1 / self.step_s

    @property
    def cost_usd(self) -> float | None:
        """Of running this point."""
        return None if self.gpu_hours is None or self.price_per_hour is None else self.gpu_hours * self.price_per_hour

    @property
    def usd_per_million_tokens(self) -> float | None:
        """What a longer run in this setting costs: price * ranks / 3600 / tokens per second * 10^6."""
        if self.price_per_hour is None or self.tokens_per_s == 0:
            return None
        return self.price_per_hour * self.num_ranks / 3600 / self.tokens_per_s * 1e6


@dataclass(frozen=True, slots=True)
class UnfinishedPoint:
    """A point without a result. Example: ``UnfinishedPoint("gpus_4", "failed", "rank 1 (exit code 1): ...", "/runs/...")``."""

    name: str
    state: str
    reason: str
    run_dir: str


def measured_point(
    name: str,
    settings: Mapping[str, str],
    num_ranks: int,
    statistics: StepStatistics,
    *,
    wall_s: float | None,
    price_per_hour: float | None,
) -> PointResult:
    """The result of a run.

    Args:
        name: of the point.
        settings: what distinguishes it.
        num_ranks: of the job.
        statistics: of its steps.
        wall_s: from start to end; None = unknown, then the steps alone are paid for.
        price_per_hour: USD per GPU hour; None = no cost.
    """
    return PointResult(
        name=name,
        source="measured",
        settings=settings,
        num_ranks=num_ranks,
        num_steps=statistics.num_steps,
        step_s=statistics.step_s.mean,
        step_std_s=statistics.step_s.std,
        tokens_per_step=statistics.tokens_per_step,
        tokens_per_s=statistics.tokens_per_s,
        phase_s={phase.phase: phase.seconds.mean for phase in statistics.phases},
        phase_std_s={phase.phase: phase.seconds.std for phase in statistics.phases},
        memory_gib=statistics.memory_gib,
        peak_gib=statistics.peak_gib,
        gpu_hours=(statistics.total_s if wall_s is None else wall_s) * num_ranks / 3600,
        price_per_hour=price_per_hour,
        reward=None if statistics.reward is None else statistics.reward.last_mean,
    )
