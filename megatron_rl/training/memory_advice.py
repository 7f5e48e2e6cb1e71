"""Which settings give memory back in a phase, in the order in which they cost least."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from megatron_rl.config.run import RunConfig
from megatron_rl.config.tensor_degrees import divisors, training_tensor_degrees
from megatron_rl.config.training import TrainedRoleConfig

NUM_SETTINGS = 2
_PHASES_OF_ROLE = {
    "old_log_prob": "actor",
    "ref": "actor",
    "values": "critic",
    "update_critic": "critic",
    "update_actor": "actor",
}
"""Phases whose working memory a role's micro-batch decides; the reference scores in the actor's."""


def settings_to_change(config: RunConfig, phase: str, *, alone: bool = False) -> list[str]:
    """The two settings that help most in a phase, each as ``key=value (now ...): what it does``.

    ``alone``: the actor has the card to itself, as in supervised fine-tuning.
    """
    return list(islice(_alone(config) if alone else _candidates(config, phase), NUM_SETTINGS))


def _alone(config: RunConfig) -> Iterator[str]:
    yield from _micro_batch(config, "actor")
    yield from _recompute("actor", config.actor)
    yield from _more_ranks(config)
    yield from _shorter_samples(config)


def _candidates(config: RunConfig, phase: str) -> Iterator[str]:
    name = _PHASES_OF_ROLE.get(phase)
    if phase in ("update_actor", "update_critic"):
        assert name is not None
        yield from _sleep(config)
        yield from _micro_batch(config, name)
        yield from _recompute(name, _role(config, name))
    elif name is not None:
        yield from _micro_batch(config, name)
        yield from _sleep(config)
    if phase == "update_weights" and config.weight_sync.budget_mib > 1:
        yield (
            f"weight_sync.budget_mib={max(1, config.weight_sync.budget_mib // 4)} (now {config.weight_sync.budget_mib}): "
            "less staging memory"
        )
    yield from _offload(config)
    yield from _cache(config)
    yield from _shorter_samples(config)


def _role(config: RunConfig, name: str) -> TrainedRoleConfig:
    return config.critic if name == "critic" else config.actor


def _micro_batch(config: RunConfig, name: str) -> Iterator[str]:
    role = _role(config, name)
    if role.use_dynamic_bsz:
        key, now = "ppo_max_token_len_per_gpu", role.ppo_max_token_len_per_gpu
        least = config.data.max_prompt_length + config.data.max_response_length
    else:
        key, now, least = "ppo_micro_batch_size_per_gpu", role.ppo_micro_batch_size_per_gpu or 1, 1
    if now > least:
        yield f"{name}.{key}={max(least, now // 2)} (now {now}): smaller micro-batches, same result"


def _more_ranks(config: RunConfig) -> Iterator[str]:
    """The next degrees that the model's shape allows."""
    now, model = config.actor.parallel, config.model
    tensor = next((t for t in training_tensor_degrees(model) if t > now.tensor), None)
    if tensor is not None:
        yield f"actor.parallel.tensor={tensor} (now {now.tensor}): weights and activations over more ranks"
    chunks = now.virtual_pipeline or 1
    pipeline = next((n for n in divisors(model.num_layers // chunks) if n > now.pipeline), None)
    if pipeline is not None:
        yield f"actor.parallel.pipeline={pipeline} (now {now.pipeline}): layers over more ranks"


def _shorter_samples(config: RunConfig) -> Iterator[str]:
    now = config.data.max_response_length
    yield f"data.max_response_length={max(1, now // 2)} (now {now}): shorter samples, another task for the policy"


def _recompute(name: str, role: TrainedRoleConfig) -> Iterator[str]:
    if role.recompute.granularity != "full":
        now = role.recompute.granularity or "null"
        yield f"{name}.recompute.granularity=full (now {now}): keeps one activation a layer, a quarter more computation"


def _sleep(config: RunConfig) -> Iterator[str]:
    if not config.rollout.free_cache_engine:
        yield "rollout.free_cache_engine=true (now false): the engine's cache leaves the GPU while roles compute"


def _offload(config: RunConfig) -> Iterator[str]:
    trained = {"actor": config.actor} | ({"critic": config.critic} if config.uses_critic else {})
    for name, role in trained.items():
        if not role.grad_offload:
            yield f"{name}.grad_offload=true (now false): no gradient buffers outside of this role's update, at no cost"
    for name, role in trained.items():
        if not role.optimizer_offload:
            yield f"{name}.optimizer_offload=true (now false): optimizer state in host memory outside of this role's update"
    if config.uses_reference and not config.ref.param_offload:
        yield "ref.param_offload=true (now false): the reference's weights in host memory while it does not score"
    if config.uses_critic and not config.critic.param_offload:
        yield "critic.param_offload=true (now false): the critic's weights in host memory while it is not in use"


def _cache(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    if rollout.kv_cache_gib is not None:
        yield f"rollout.kv_cache_gib={rollout.kv_cache_gib / 2:g} (now {rollout.kv_cache_gib:g}): fewer sequences at a time"
    else:
        now = rollout.gpu_memory_utilization
        yield f"rollout.gpu_memory_utilization={now * 0.7:.2g} (now {now:g}): a smaller cache, fewer sequences at a time"
    if rollout.max_num_seqs > 1:
        yield (
            f"rollout.max_num_seqs={rollout.max_num_seqs // 2} (now {rollout.max_num_seqs}): "
            "a smaller sampler workspace and smaller CUDA graphs"
        )
