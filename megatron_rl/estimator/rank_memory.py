"""Memory of the fullest rank of a configured run, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megatron_rl.config.parallel import ParallelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.config.world import data_degree, max_model_len
from megatron_rl.estimator.coefficients import Coefficients
from megatron_rl.estimator.deployment import Deployment, EngineSetup, RoleName, RoleSetup
from megatron_rl.estimator.engine_memory import workspace_bytes
from megatron_rl.estimator.memory import phase_memory
from megatron_rl.estimator.memory_part import PhaseMemory
from megatron_rl.estimator.parameters import engine_parameters
from megatron_rl.parallel.layout import ParallelLayout

GIB = 1024**3


def rank_memory(config: RunConfig, world_size: int, *, on_gpu: bool) -> tuple[PhaseMemory, ...]:
    """Estimate each phase of a training run whose layouts are valid.

    The KV cache counts as 0 where it is a share of a card of unknown size (``launcher.gpu_memory_gib`` null). On CPU the
    process itself is left out.
    """
    coefficients = Coefficients()
    return phase_memory(
        _deployment(config, world_size, on_gpu=on_gpu),
        context_bytes=round(coefficients.context_bytes.value) if on_gpu else 0,
        cuda_graph_bytes=round(coefficients.cuda_graph_bytes.value) if on_gpu else 0,
    )


def memory_table(phases: Sequence[PhaseMemory]) -> str:
    """Aligned text: the total of each phase, then the parts of the largest."""
    worst = max(phases, key=lambda phase: phase.total_bytes)
    rows: list[tuple[str, int]] = [(phase.phase, phase.total_bytes) for phase in phases]
    rows += [(f"  {worst.phase}: {part.role} {part.kind}", part.size_bytes) for part in worst.parts]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {size / GIB:8.3f} GiB" for name, size in rows)


def _deployment(config: RunConfig, world_size: int, *, on_gpu: bool) -> Deployment:
    roles = [_trained_role(config, "actor", config.actor, world_size)]
    if config.uses_critic:
        roles.append(_trained_role(config, "critic", config.critic, world_size))
    if config.uses_reference:
        layout = _layout(config.ref.parallel or config.actor.parallel, world_size)
        tokens = _micro_batch_tokens(config, config.actor, layout)
        roles.append(RoleSetup(name="reference", layout=layout, micro_batch_tokens=tokens, trained=False))
    weight_bytes = 2 if on_gpu and config.trainer.dtype != "float32" else 4
    return Deployment(
        model=config.model,
        roles=tuple(roles),
        engine=_engine(config, world_size, weight_bytes, on_gpu=on_gpu),
        weight_bytes=weight_bytes,
        sync_budget_bytes=config.weight_sync.budget_bytes,
        on_gpu=on_gpu,
    )


def _layout(parallel: ParallelConfig, world_size: int) -> ParallelLayout:
    return ParallelLayout(
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        data=data_degree(parallel, world_size),
        context=parallel.context,
        virtual_pipeline=parallel.virtual_pipeline or 1,
        expert=parallel.expert,
        expert_tensor=parallel.expert_tensor,
        sequence_parallel=parallel.sequence_parallel,
    )


def _trained_role(config: RunConfig, name: RoleName, role: TrainedRoleConfig, world_size: int) -> RoleSetup:
    layout = _layout(role.parallel, world_size)
    return RoleSetup(
        name=name,
        layout=layout,
        micro_batch_tokens=_micro_batch_tokens(config, role, layout),
        recompute=role.recompute.granularity or "none",
        distributed_optimizer=role.optim.use_distributed_optimizer,
    )


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
