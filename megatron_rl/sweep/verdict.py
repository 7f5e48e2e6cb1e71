"""What a probe concludes: does it fit, does it learn, is it fast enough. Explicit rules over plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megatron_rl.sweep.step_statistics import Trend

Answer = Literal["yes", "no", "unclear"]

TIGHT_FRAC = 0.9
"""Above this share of the card a run that went through still may not: responses grow, fragments accumulate."""
FEWEST_STEPS = 10
"""Below, no trend of the reward is judged."""
SIGNIFICANT_T = 2.0
"""Slope over its standard error from which a trend counts; about one in twenty runs without a trend gets there."""
LENGTH_SEEN_FRAC = 0.9
"""Of the longest allowed response; a probe that saw no longer one has not seen the most memory."""
_OUT_OF_MEMORY = ("out of memory", "outofmemory", "sigkill", "no available memory", "cannot allocate memory")


@dataclass(frozen=True, slots=True)
class Judgement:
    """One question answered. Example: ``Judgement("learns", "yes", "reward 0.12 -> 0.31, +0.004 a step, t = 5.1")``."""

    question: str
    answer: Answer
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The whole run at the probe's pace. Validation, saving and starting come on top."""

    total_steps: int
    hours: float
    gpu_hours: float
    cost_usd: float | None


def project(step_s: float, total_steps: int, num_ranks: int, price_per_hour: float | None) -> Projection:
    """Hours and USD of ``total_steps`` steps on ``num_ranks`` GPUs; no price, no cost."""
    hours = step_s * total_steps / 3600
    cost = None if price_per_hour is None else hours * num_ranks * price_per_hour
    return Projection(total_steps=total_steps, hours=hours, gpu_hours=hours * num_ranks, cost_usd=cost)


def judge_failure(reason: str) -> Judgement:
    """A run that ended early: only what its last words say about memory is known."""
    if any(words in reason.lower() for words in _OUT_OF_MEMORY):
        return Judgement("fits", "no", reason)
    return Judgement("runs", "no", reason)


def judge_memory(peak_gib: float, card_gib: float | None, longest_response: float, max_response: int) -> Judgement:
    """Whether the run fits the card.

    Args:
        peak_gib: most that any rank held at any time.
        card_gib: the card's memory; None on a CPU, where nothing but the run's end tells.
        longest_response: tokens, over the whole probe.
        max_response: tokens allowed.
    """
    seen = longest_response / max_response
    doubt = "" if seen >= LENGTH_SEEN_FRAC else f"; the longest response had {longest_response:.0f} of {max_response} tokens"
    if card_gib is None:
        return Judgement("fits", "yes", f"it ran; peak {peak_gib:.2f} GiB a rank{doubt}")
    used = peak_gib / card_gib
    text = f"peak {peak_gib:.1f} of {card_gib:.1f} GiB ({used:.0%}){doubt}"
    return Judgement("fits", "yes", text) if used <= TIGHT_FRAC else Judgement("fits", "unclear", f"tight: {text}")


def judge_learning(reward: Trend | None) -> Judgement:
    """Whether the reward rises."""
    if reward is None:
        return Judgement("learns", "unclear", "no reward was recorded")
    change = f"reward {reward.first_mean:.3f} -> {reward.last_mean:.3f}, {reward.slope:+.2g} a step"
    if reward.num_values < FEWEST_STEPS:
        return Judgement("learns", "unclear", f"{change}; {reward.num_values} steps tell nothing, {FEWEST_STEPS} are needed")
    if reward.t is None:
        if reward.slope == 0:
            return Judgement("learns", "no", f"the reward never changes from {reward.last_mean:.3f}: no signal")
        return Judgement("learns", "yes" if reward.slope > 0 else "no", change)
    text = f"{change}, t = {reward.t:.1f}"
    if abs(reward.t) < SIGNIFICANT_T:
        return Judgement("learns", "unclear", f"{text}: within its noise")
    return Judgement("learns", "yes" if reward.t > 0 else "no", text)


def judge_speed(projection: Projection, max_hours: float | None) -> Judgement:
    """Whether the whole run ends in time."""
    text = f"{projection.hours:.3g} h for {projection.total_steps:,} steps"
    if max_hours is None:
        return Judgement("fast enough", "unclear", f"{text}; give max_hours= to have it judged")
    if projection.hours <= max_hours:
        return Judgement("fast enough", "yes", f"{text}, within max_hours={max_hours:g}")
    return Judgement("fast enough", "no", f"too slow: {text}, above max_hours={max_hours:g}")
