"""From a run's configuration to the work of one step and to what the search may not change."""

from __future__ import annotations

from collections.abc import Collection

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.logprob_reuse import reuses_logprobs
from megatron_rl.config.run import RunConfig
from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.estimator.catalogue import GIB
from megatron_rl.estimator.configured import precision_of
from megatron_rl.estimator.deployment import Recompute, Workload
from megatron_rl.estimator.strategies import Limits, Pins, RoleDegrees

DEFAULT_NUM_PROMPTS = 10_000
"""Where the data set is not known."""


def workload_of(
    config: RunConfig, *, num_prompts: int | None = None, prompt_tokens: int | None = None, response_tokens: int | None = None
) -> Workload:
    """Work of one step.

    Args:
        config: composed configuration; it need not be complete enough to train.
        num_prompts: of the data set; None = those of ``data.reasoning_gym``, else ``DEFAULT_NUM_PROMPTS``, at least a batch.
        prompt_tokens: mean; None = ``data.max_prompt_length``, an upper bound.
        response_tokens: mean; None = ``data.max_response_length``, an upper bound.

    Raises:
        ConfigError: a mean above its maximum, fewer prompts than a batch, or mini-batches that do not divide the batch.
    """
    data = config.data
    task = data.reasoning_gym
    problems = [
        f"{key}={mean}: the mean is above {limit_key}={limit}; raise the limit or lower the mean"
        for key, mean, limit_key, limit in (
            ("prompt_tokens", prompt_tokens, "data.max_prompt_length", data.max_prompt_length),
            ("response_tokens", response_tokens, "data.max_response_length", data.max_response_length),
        )
        if mean is not None and mean > limit
    ]
    if problems:
        raise ConfigError(problems)
    batch = data.train_batch_size
    known = task.train_size if task is not None and not data.train_files else max(DEFAULT_NUM_PROMPTS, batch)
    if (num_prompts or known) < batch:
        raise ConfigError(
            [f"dataset_size={num_prompts or known}: fewer prompts than a step takes; lower data.train_batch_size={batch}"]
        )
    return Workload(
        prompts_per_step=batch,
        samples_per_prompt=config.rollout.n,
        prompt_tokens=prompt_tokens or data.max_prompt_length,
        response_tokens=response_tokens or data.max_response_length,
        max_prompt_tokens=data.max_prompt_length,
        max_response_tokens=data.max_response_length,
        num_prompts=num_prompts or known,
        epochs=config.trainer.total_epochs,
        uses_critic=config.uses_critic,
        uses_reference=config.uses_reference,
        actor_optimizer_steps=_optimizer_steps(config, config.actor),
        actor_passes=config.actor.ppo_epochs,
        critic_optimizer_steps=_optimizer_steps(config, config.critic),
        critic_passes=config.critic.ppo_epochs,
        fixed_steps=config.trainer.total_training_steps,
        scores_actor=not reuses_logprobs(config),
    )


def _optimizer_steps(config: RunConfig, role: TrainedRoleConfig) -> int:
    prompts = config.data.train_batch_size
    return max(1, prompts // (role.ppo_mini_batch_size or prompts)) * role.ppo_epochs


def pins_of(config: RunConfig, typed: Collection[str]) -> Pins:
    """What the user typed stays; every other degree is searched."""

    def pinned[T](key: str, value: T) -> T | None:
        return value if key in typed else None

    actor, rollout = config.actor, config.rollout
    recompute: Recompute = actor.recompute.granularity or "none"
    cache = None if rollout.kv_cache_gib is None else round(rollout.kv_cache_gib * GIB)
    critic, reference = config.critic.parallel, config.ref.parallel
    return Pins(
        tensor=pinned("actor.parallel.tensor", actor.parallel.tensor),
        pipeline=pinned("actor.parallel.pipeline", actor.parallel.pipeline),
        rollout_tensor=pinned("rollout.tensor_parallel_size", rollout.tensor_parallel_size),
        recompute=pinned("actor.recompute.granularity", recompute),
        micro_batch_tokens=pinned("actor.ppo_max_token_len_per_gpu", actor.ppo_max_token_len_per_gpu),
        kv_cache_bytes=pinned("rollout.kv_cache_gib", cache),
        critic=RoleDegrees(critic.tensor, critic.pipeline) if _any_below("critic.parallel", typed) else None,
        reference=None if reference is None else RoleDegrees(reference.tensor, reference.pipeline),
    )


def _any_below(section: str, typed: Collection[str]) -> bool:
    return any(key.startswith(f"{section}.") for key in typed)


def limits_of(config: RunConfig) -> Limits:
    """Settings that the search takes over."""
    return Limits(
        micro_batch_tokens=config.actor.ppo_max_token_len_per_gpu,
        max_num_seqs=config.rollout.max_num_seqs,
        max_num_batched_tokens=config.rollout.max_num_batched_tokens,
        prefix_caching=config.rollout.enable_prefix_caching,
        aliased=config.weight_sync.alias,
        sync_budget_bytes=config.weight_sync.budget_bytes,
        role=precision_of(config.actor),
    )
