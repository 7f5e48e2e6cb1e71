"""A run's configuration on a known number of ranks, as a deployment."""

from __future__ import annotations

from dataclasses import replace

from megatron_rl.config.run import RunConfig
from megatron_rl.config.training import SEQUENCE_LEVEL_LOSSES, ActorConfig, OptimConfig, TrainedRoleConfig
from megatron_rl.config.world import max_model_len
from megatron_rl.estimator.catalogue import GIB
from megatron_rl.estimator.deployment import Deployment, EngineSetup, Residency, RoleName, RoleSetup
from megatron_rl.estimator.engine_memory import workspace_bytes
from megatron_rl.estimator.parameters import engine_parameters
from megatron_rl.parallel.from_config import role_layout
from megatron_rl.parallel.layout import ParallelLayout

MASTER_REMAINDER_BYTES = 2
"""Per 16-bit weight: what Transformer Engine's Adam keeps of an f32 master copy beside the weight itself."""
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


def deployment_of(config: RunConfig, world_size: int, *, on_gpu: bool, fused_adam: bool = True) -> Deployment:
    """Roles and engine of a training run whose layouts are valid on ``world_size`` ranks.

    ``fused_adam``: whether an Adam step on a GPU is one kernel, which what is installed there decides, not the layers.
    """
    roles = [_trained_role(config, "actor", config.actor, world_size)]
    if config.uses_critic:
        critic = _trained_role(config, "critic", config.critic, world_size)
        roles.append(replace(critic, weights=_residency(config.critic.param_offload)))
    if config.uses_reference:
        layout = role_layout(config.ref.parallel or config.actor.parallel, world_size)
        roles.append(
            RoleSetup(
                name="reference",
                layout=layout,
                micro_batch_tokens=_micro_batch_tokens(config, config.actor, layout),
                trained=False,
                weights=_residency(config.ref.param_offload),
            )
        )
    weight_bytes = 2 if on_gpu and config.trainer.dtype != "float32" else 4
    return Deployment(
        model=config.model,
        roles=tuple(roles),
        engine=_engine(config, world_size, weight_bytes, on_gpu=on_gpu),
        weight_bytes=weight_bytes,
        sync_budget_bytes=config.weight_sync.budget_bytes,
        on_gpu=on_gpu,
        fused_adam=on_gpu and fused_adam,
    )


def precision_of(role: TrainedRoleConfig) -> RoleSetup:
    """Bytes of a role's gradients and optimizer, and its loss; layout and micro-batch are left to the caller."""
    optim: OptimConfig = role.optim
    return RoleSetup(
        name="actor",
        layout=ParallelLayout(),
        micro_batch_tokens=1,
        distributed_optimizer=optim.use_distributed_optimizer,
        gradient_bytes=_DTYPE_BYTES[optim.main_grads_dtype],
        master_bytes=MASTER_REMAINDER_BYTES if optim.use_precision_aware_optimizer else 4,
        moment_bytes=_DTYPE_BYTES[optim.exp_avg_dtype] + _DTYPE_BYTES[optim.exp_avg_sq_dtype],
        separable_loss=not isinstance(role, ActorConfig) or role.policy_loss not in SEQUENCE_LEVEL_LOSSES,
    )


def _trained_role(config: RunConfig, name: RoleName, role: TrainedRoleConfig, world_size: int) -> RoleSetup:
    layout = role_layout(role.parallel, world_size)
    return replace(
        precision_of(role),
        name=name,
        layout=layout,
        micro_batch_tokens=_micro_batch_tokens(config, role, layout),
        recompute=role.recompute.granularity or "none",
        gradients=_residency(role.grad_offload),
        optimizer=_residency(role.optimizer_offload),
    )


def _residency(offloaded: bool) -> Residency:
    return "own_phase" if offloaded else "always"


def _micro_batch_tokens(config: RunConfig, role: TrainedRoleConfig, layout: ParallelLayout) -> int:
    """Most tokens of one micro-batch: its limit, or all the samples a data-parallel rank has."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    samples = -(-(role.ppo_mini_batch_size or config.data.train_batch_size) * config.rollout.n // layout.data)
    limit = role.ppo_max_token_len_per_gpu if role.use_dynamic_bsz else (role.ppo_micro_batch_size_per_gpu or 1) * longest
    return min(limit, samples * longest)


def _engine(config: RunConfig, world_size: int, weight_bytes: int, *, on_gpu: bool) -> EngineSetup:
    rollout, model = config.rollout, config.model
    engine = EngineSetup(
        tensor=rollout.tensor_parallel_size,
        data=world_size // rollout.tensor_parallel_size,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=max(rollout.max_num_batched_tokens, max_model_len(config)),
        kv_cache_bytes=0,
        prefix_caching=rollout.enable_prefix_caching,
        cuda_graphs=on_gpu and not rollout.enforce_eager,
        aliased=config.weight_sync.alias,
        quantised=rollout.quantization is not None,
        sleeps=on_gpu and bool(rollout.free_cache_engine),
    )
    if rollout.kv_cache_gib is not None:
        cache = round(rollout.kv_cache_gib * GIB)
    elif not on_gpu:
        cache = GIB
    elif config.launcher.gpu_memory_gib is None:
        cache = 0
    else:
        share = round(config.launcher.gpu_memory_gib * GIB * rollout.gpu_memory_utilization)
        weights = engine_parameters(model, engine.tensor) * weight_bytes
        cache = max(0, share - weights - workspace_bytes(model, engine, weight_bytes))
    return replace(engine, kv_cache_bytes=cache)
