"""What the estimator says about a point, in the form of a result; labelled as model output wherever it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.catalogue import GIB, find_gpu
from megatron_rl.estimator.configured_strategy import configured_strategy
from megatron_rl.estimator.explain import resampling_lines
from megatron_rl.estimator.ranking import Plan, why_not
from megatron_rl.estimator.step_time import TimePart
from megatron_rl.sweep.point_result import PointResult

TIMERS = {
    ("rollout", "engine"): "gen",
    ("scoring", "actor"): "old_log_prob",
    ("scoring", "reference"): "ref",
    ("scoring", "critic"): "values",
    ("update", "critic"): "update_critic",
    ("update", "actor"): "update_actor",
    ("switch-over", "engine"): "update_weights",
}
"""Phase and role of the estimator -> the timer that measures the same; whatever has none counts as ``other``."""


def modelled_point(
    name: str,
    settings: Mapping[str, str],
    config: RunConfig,
    num_ranks: int,
    *,
    gpu: str,
    price_per_hour: float | None,
    prompt_tokens: int | None,
    response_tokens: int | None,
) -> PointResult:
    """Model output for a point on ``num_ranks`` cards.

    Args:
        name: of the point.
        settings: what distinguishes it.
        config: of the point.
        num_ranks: cards.
        gpu: kind of card.
        price_per_hour: USD per GPU hour; None = no cost.
        prompt_tokens: mean; None = the configured maximum.
        response_tokens: mean; None = the configured maximum.

    Raises:
        ConfigError: the estimator cannot place the point.
    """
    strategy = configured_strategy(
        config,
        find_gpu(gpu),
        num_ranks,
        prompt_tokens=_within(prompt_tokens, config.data.max_prompt_length),
        response_tokens=_within(response_tokens, config.data.max_response_length),
    )
    phases = _by_timer(strategy.times)
    step_s = sum(phases.values())
    samples = config.data.train_batch_size * config.rollout.n
    length = (prompt_tokens or config.data.max_prompt_length) + (response_tokens or config.data.max_response_length)
    doubts = [
        *([] if strategy.fits else [why_not(Plan((strategy,)))]),
        *filter(None, [strategy.untrainable]),
        *resampling_lines(config),
    ]
    return PointResult(
        name=name,
        source="model",
        settings=settings,
        num_ranks=num_ranks,
        num_steps=0,
        step_s=step_s,
        step_std_s=None,
        tokens_per_step=float(samples * length),
        tokens_per_s=samples * length / step_s,
        phase_s=phases,
        phase_std_s=dict.fromkeys(phases),
        memory_gib={phase.phase: phase.total_bytes / GIB for phase in strategy.memory},
        peak_gib=strategy.peak.total_bytes / GIB,
        gpu_hours=None,
        price_per_hour=price_per_hour,
        note=f"model output for {num_ranks} x {strategy.pool.gpu.name}" + "".join(f": {doubt}" for doubt in doubts),
    )


def _by_timer(parts: Iterable[TimePart]) -> dict[str, float]:
    """Seconds a step under the timers' names, so that model and measurement stand side by side."""
    found: dict[str, float] = {}
    for part in parts:
        timer = TIMERS.get((part.phase, part.role), "other")
        found[timer] = found.get(timer, 0.0) + part.seconds
    return found


def _within(mean: int | None, limit: int) -> int | None:
    """A measured mean may round up past the maximum."""
    return None if mean is None else min(mean, limit)
