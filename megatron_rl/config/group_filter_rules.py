"""Rules about dynamic sampling."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_rl.config.run import RunConfig


def group_filter_problems(config: RunConfig) -> Iterator[str]:
    """Filters that could keep nothing, keep the wrong things, or leave the length of the run open."""
    data, rule = config.data, config.algorithm.filter_groups
    if not rule.enable:
        if data.gen_batch_size not in (None, data.train_batch_size):
            yield (
                f"data.gen_batch_size={data.gen_batch_size} differs from data.train_batch_size={data.train_batch_size}: only "
                "algorithm.filter_groups.enable=true samples other prompts than it trains on; use null, or enable it"
            )
        return
    enabled = "algorithm.filter_groups.enable=true"
    if config.rollout.n < 2:
        yield f"rollout.n={config.rollout.n} with {enabled}: one answer differs from no other; use rollout.n of 2 or more"
    if config.algorithm.adv_estimator == "gae":
        yield (
            f"algorithm.adv_estimator=gae with {enabled}: with a critic as baseline groups of equal rewards have a gradient "
            "too, and without them its values would be wrong; use grpo or another group estimator, or enable=false"
        )
    if config.trainer.total_training_steps is None:
        yield (
            f"trainer.total_training_steps=null with {enabled}: how many steps trainer.total_epochs give depends on what is "
            "kept; set the number of steps"
        )
    limit, at_once = rule.max_num_gen_batches, data.prompts_per_gen_batch
    if limit and limit * at_once < data.train_batch_size:
        yield (
            f"algorithm.filter_groups.max_num_gen_batches={limit} * {data.gen_batch_key}={at_once} prompts never fill "
            f"data.train_batch_size={data.train_batch_size}; use at least {-(-data.train_batch_size // at_once)}, or 0"
        )
