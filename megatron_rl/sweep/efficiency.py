"""Scaling efficiency against the smallest point, and the phase that lost it.

With r(p) tokens per second and n(p) ranks of point p, and 0 the smallest point of the same source::

    efficiency(p) = (r(p) / n(p)) / (r(0) / n(0))

For strong scaling with equal tokens a step this is T(0) n(0) / (T(p) n(p)), for weak scaling T(0) / T(p).

A token costs n(p) / r(p) rank-seconds, which is the sum over the phases. In units of what it costs at the smallest point,
phase k takes c_k(p) = n(p) t_k(p) / tokens(p) / (n(0) / r(0)); there the c_k(0) are the phases' shares of the step. So
1 / efficiency(p) - 1 = sum over k of c_k(p) - c_k(0) exactly, and the phase to blame is the one whose c_k grew most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_rl.sweep.point_result import PointResult

NEGLIGIBLE_FRAC = 0.01
"""Below this loss no phase is blamed."""


@dataclass(frozen=True, slots=True)
class Blame:
    """The phase to blame. Example: ``Blame("update_actor", 0.4, 0.6, 0.8)``."""

    phase: str
    share_before: float
    """Of the smallest point's step."""
    share_now: float
    """In units of the smallest point's cost of a token."""
    loss_frac: float
    """Its part of the growth of all phases that grew."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How one point compares with the smallest of its source."""

    efficiency_frac: float
    speedup: float
    """Tokens per second over those of the smallest point."""
    blame: Blame | None
    """None where nothing is lost."""


def efficiencies(results: Sequence[PointResult]) -> dict[tuple[str, str], Efficiency]:
    """(source, name) -> efficiency; measured points are compared with measured ones, the model's with the model's."""
    found: dict[tuple[str, str], Efficiency] = {}
    for source in ("measured", "model"):
        own = [result for result in results if result.source == source]
        if own:
            smallest = min(own, key=lambda result: result.num_ranks)
            found |= {(source, result.name): efficiency(result, smallest) for result in own}
    return found


def efficiency(result: PointResult, smallest: PointResult) -> Efficiency:
    """One point against the smallest."""
    speedup = result.tokens_per_s / smallest.tokens_per_s
    per_rank = speedup * smallest.num_ranks / result.num_ranks
    return Efficiency(per_rank, speedup, _blame(result, smallest) if per_rank < 1 - NEGLIGIBLE_FRAC else None)


def phase_costs(result: PointResult, smallest: PointResult) -> dict[str, float]:
    """Phase -> rank-seconds of a token, in units of what a token costs at the smallest point."""
    unit = smallest.num_ranks / smallest.tokens_per_s
    return {phase: result.num_ranks * seconds / result.tokens_per_step / unit for phase, seconds in result.phase_s.items()}


def _blame(result: PointResult, smallest: PointResult) -> Blame:
    before, now = phase_costs(smallest, smallest), phase_costs(result, smallest)
    growth = {phase: now.get(phase, 0.0) - before.get(phase, 0.0) for phase in {**before, **now}}
    worst = max(growth, key=lambda phase: growth[phase])
    grown = sum(value for value in growth.values() if value > 0)
    return Blame(worst, before.get(worst, 0.0), now.get(worst, 0.0), growth[worst] / grown if grown > 0 else 0.0)
