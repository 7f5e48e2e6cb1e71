"""Whether the update's own forward pass gives the old log-probs, or a scoring pass before it."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_rl.config.run import RunConfig


def reuses_logprobs(config: RunConfig) -> bool:
    """True where no scoring pass of the actor runs: with one optimizer step per rollout, both passes see the same weights."""
    reuse = config.actor.reuse_logprobs
    return not any(_early_readers(config)) if reuse is None else reuse


def reuse_problems(config: RunConfig) -> Iterator[str]:
    """Why ``actor.reuse_logprobs=true`` cannot be."""
    if config.actor.reuse_logprobs:
        for reader in _early_readers(config):
            yield f"actor.reuse_logprobs=true with {reader}; use null or false"


def _early_readers(config: RunConfig) -> Iterator[str]:
    """Settings that need old log-probs before, or other than, those of the update's forward pass."""
    actor, prompts = config.actor, config.data.train_batch_size
    if actor.ppo_epochs > 1:
        yield f"actor.ppo_epochs={actor.ppo_epochs}: from the second optimizer step on the policy is no longer the old one"
    if (actor.ppo_mini_batch_size or prompts) < prompts:
        yield (
            f"actor.ppo_mini_batch_size={actor.ppo_mini_batch_size} of data.train_batch_size={prompts}: from the second "
            "optimizer step on the policy is no longer the old one"
        )
    if config.algorithm.use_kl_in_reward:
        yield "algorithm.use_kl_in_reward=true: the rewards contain old log-probs"
    if config.rollout.correction.mode != "none":
        yield f"rollout.correction.mode={config.rollout.correction.mode}: its weights are made of old log-probs"
    if config.uses_critic and config.critic.warmup_steps > 0:
        yield f"critic.warmup_steps={config.critic.warmup_steps}: those steps have no update of the policy"
