"""What the estimator says about a point, in the form of a result; labelled as model output wherever it is shown."""

from __future__ import annotations

from collections.abc import Mapping

from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.cost import CostEstimate
from megatron_rl.estimator.estimate import Request, estimate
from megatron_rl.sweep.point_result import PointResult

PINNED = frozenset(
    {
        "actor.parallel.tensor",
        "actor.parallel.pipeline",
        "rollout.tensor_parallel_size",
        "actor.recompute.granularity",
        "actor.ppo_max_token_len_per_gpu",
    }
)
"""A point is what it is: the estimator searches no better layout for it."""
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
    price_per_gpu_hour: float | None,
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
        price_per_gpu_hour: USD; None = no cost.
        prompt_tokens: mean; None = the configured maximum.
        response_tokens: mean; None = the configured maximum.

    Raises:
        ConfigError: the estimator cannot place the point.
    """
    answer = estimate(
        config,
        Request(
            gpu=gpu,
            num_gpus=num_ranks,
            price_per_hour=price_per_gpu_hour,
            prompt_tokens=_within(prompt_tokens, config.data.max_prompt_length),
            response_tokens=_within(response_tokens, config.data.max_response_length),
            typed=PINNED,
        ),
    )
    phases = _by_timer(answer)
    step_s = sum(phases.values())
    samples = config.data.train_batch_size * config.rollout.n
    length = (prompt_tokens or config.data.max_prompt_length) + (response_tokens or config.data.max_response_length)
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
        memory_gib={phase: sum(parts.values()) for phase, parts in answer.memory_gib[0].phases.items()},
        peak_gib=answer.peak_mem_per_gpu,
        gpu_hours=None,
        price_per_gpu_hour=price_per_gpu_hour,
        note=f"model output for {answer.gpus}" + ("" if answer.fits else f": {answer.verdict}"),
    )


def _by_timer(answer: CostEstimate) -> dict[str, float]:
    """Seconds a step under the timers' names, so that model and measurement stand side by side."""
    found: dict[str, float] = {}
    for phase, role, _, seconds in answer.time_parts:
        timer = TIMERS.get((phase, role), "other")
        found[timer] = found.get(timer, 0.0) + seconds
    return found


def _within(mean: int | None, limit: int) -> int | None:
    """A measured mean may round up past the maximum."""
    return None if mean is None else min(mean, limit)
