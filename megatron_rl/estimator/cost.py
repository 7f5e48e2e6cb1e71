"""Steps to hours, hours to money; and the frozen answer of an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

UNITS = {
    "peak_mem_per_gpu": "GiB",
    "time_per_epoch": "hours",
    "total_gpu_hours": "GPU hours",
    "cost": "USD",
    "step_seconds": "seconds",
    "step_spread_s": "seconds",
    "memory_gib": "GiB",
    "price_per_hour": "USD per GPU hour",
}


def hours(step_s: float, steps: int) -> float:
    """Wall-clock hours of so many steps."""
    return step_s * steps / 3600


def gpu_hours(step_s: float, steps: int, num_gpus: int) -> float:
    """Hours times cards: idle cards are paid for as well."""
    return hours(step_s, steps) * num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedStrategy:
    """One way to run, with its price. All figures are model output."""

    label: str
    """Example: ``TP2 PP1 DP2, engine TP2 x DP2, micro-batch 16384``."""
    overrides: tuple[str, ...]
    """What to type to run it; empty where it does not fit or this version cannot."""
    fits: bool
    trainable: bool
    """Whether this version can run it."""
    peak_mem_gib: float
    peak_phase: str
    step_s: float
    phase_seconds: Mapping[str, float]
    """Of one step."""
    time_per_epoch: float
    """Hours."""
    total_gpu_hours: float
    cost: float
    """USD."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A layout that cannot be, or does not fit."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Memory of the fullest card of one kind, phase by phase."""

    gpu: str
    num_gpus: int
    card_gib: float
    usable_gib: float
    phases: Mapping[str, Mapping[str, float]]
    """Phase -> part ("actor optimizer") -> GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """What a training run needs. Everything is model output; ``calibration`` says how far it rests on measurements."""

    model: str
    parameters: int
    algorithm: str
    gpus: str
    num_gpus: int
    fits: bool
    """Whether the recommended strategy fits and this version can run it."""
    verdict: str
    peak_mem_per_gpu: float
    """GiB."""
    time_per_epoch: float
    """Hours."""
    total_gpu_hours: float
    cost: float
    """USD."""
    price_per_hour: Mapping[str, float]
    """USD per GPU hour, by kind of card."""
    price_is_assumed: bool
    steps_per_epoch: int
    total_steps: int
    recommended_strategy: RankedStrategy
    alternatives: tuple[RankedStrategy, ...]
    """What also fits, cheapest first; strategies this version cannot run come last."""
    rejected: tuple[Rejected, ...]
    memory_gib: tuple[PoolMemory, ...]
    """Of the recommended strategy."""
    step_seconds: Mapping[str, float]
    """Of one step, by phase."""
    step_spread_s: float
    """Standard deviation of the whole step, if all coefficients were off by theirs, independently."""
    time_parts: tuple[tuple[str, str, str, float], ...]
    """Phase, role, component, seconds."""
    sync: str
    assumptions: tuple[str, ...]
    calibration: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain mappings and lists, with the units of the main figures."""
        return asdict(self) | {"units": dict(UNITS)}
