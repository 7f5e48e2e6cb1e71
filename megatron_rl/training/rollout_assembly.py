"""Building the rollout side of a job, in this order: actor, plan, engine (which may adopt weights), weight sync."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from megatron_rl.config.world import max_model_len
from megatron_rl.data.tokenizer import Tokenizer
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.resharding.aliasing import alias_report, summarise_report
from megatron_rl.resharding.executor import ReshardExecutor, aliased_runs
from megatron_rl.resharding.fan_out import FanOutPlan, plan_transfer
from megatron_rl.resharding.placement import placement_summary, run_placements
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.verify import verify_transfer
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.rollout.generator import RolloutGenerator
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.model_loading import role_weights
from megatron_rl.training.weight_sync import WeightSync
from megatron_rl.weights.hf_config import hf_config
from megatron_rl.weights.names import logical_tensors


@dataclass(frozen=True)
class RolloutSide:
    """What samples."""

    engine: VllmEngine
    generator: RolloutGenerator
    sampling: SamplingSettings
    validation_sampling: SamplingSettings


def build_rollout_side(job: Job, tokenizer: Tokenizer, shared: Mapping[str, Tensor] | None = None) -> RolloutSide:
    """Start this rank's engine shard; its weights are not valid before a sync.

    Args:
        job: the job.
        tokenizer: gives the ids that end a response.
        shared: parameters that live in the trainer's storage, see ``weights_to_share``; None = the engine owns all.

    Collectives: all ranks.
    """
    config = job.config
    spec = EngineSpec(
        model_folder=_model_folder(job),
        rollout=config.rollout,
        layout=job.rollout_layout,
        device=job.platform.device,
        dtype=job.platform.dtype,
        max_model_len=max_model_len(config),
        sleep_mode=bool(config.rollout.free_cache_engine),
        shared=shared or {},
    )
    engine = VllmEngine(spec, job.host_group)
    seed = config.trainer.seed if config.rollout.seed is None else config.rollout.seed
    generator = RolloutGenerator(engine, job.rollout_layout, job.host_group, seed=seed, pad_token_id=tokenizer.pad_token_id)
    budget = config.data.max_response_length
    sampling = SamplingSettings.for_training(config.rollout, budget, tokenizer.eos_token_ids)
    validation = SamplingSettings.for_validation(config.rollout.val_kwargs, budget, tokenizer.eos_token_ids)
    # What is in force, whatever the model's own generation_config.json says.
    job.say(f"rollout: {sampling}\nvalidation: {validation}")
    return RolloutSide(engine=engine, generator=generator, sampling=sampling, validation_sampling=validation)


def actor_layout(job: Job) -> ParallelLayout:
    """The actor's layout, its ranks in the order with which most weights are where the engines want them."""
    choices = run_placements(job.config, job.world_size, job.ranks_per_node)
    job.say(placement_summary(choices, job.platform.dtype.itemsize))
    return choices["run"].train


def plan_weight_sync(job: Job, actor: MegatronRole) -> FanOutPlan:
    """Plan the transfer from the actor's layout to the engine's; what can stay where it is, is aliased if so configured."""
    model, settings = job.config.model, job.config.weight_sync
    plan = plan_transfer(
        logical_tensors(model),
        role_weights(job, actor),
        actor.groups.layout.ranks,
        vllm_rules_layout(model, job.rollout_layout),
        range(job.rollout_layout.world_size),
        itemsize=job.platform.dtype.itemsize,
        budget_bytes=settings.budget_bytes,
        ranks_per_node=job.ranks_per_node,
        fan_out=settings.fan_out,
    )
    same_dtype = all(parameter.dtype == job.platform.dtype for parameter in actor.parameters.values())
    if settings.alias and same_dtype:
        plan = plan.aliased()
    job.say(_summary(plan.both, job.rank))
    return plan


def weights_to_share(job: Job, actor: MegatronRole, plan: FanOutPlan) -> dict[str, Tensor]:
    """What the engine reads from the actor's own storage on this rank.

    The actor must be complete: its optimizer, when built, moves the weights into buffers of its own.
    """
    return aliased_runs(plan.fetch, job.rank, actor.parameters)


def build_weight_sync(job: Job, actor: MegatronRole, engine: VllmEngine, plan: FanOutPlan) -> WeightSync:
    """Bind a plan to its two sides. Collectives: all ranks compare plans."""
    sources, destinations, settings = actor.named_local_parameters(), engine.parameters(), job.config.weight_sync
    executor = partial(
        ReshardExecutor,
        rank=job.rank,
        destinations=destinations,
        group=dist.group.WORLD,
        budget_bytes=settings.budget_bytes,
        transport=settings.transport,
    )
    executors = [executor(plan.fetch, sources=sources)]
    if plan.forward.rounds:
        executors.append(executor(plan.forward, sources=destinations))
    for summary in filter(None, (each.transport_summary for each in executors)):
        job.say(summary)
    verify = partial(
        verify_transfer,
        logical_tensors(job.config.model),
        role_weights(job, actor)(job.rank),
        sources,
        vllm_rules_layout(job.config.model, job.rollout_layout)(job.rank),
        destinations,
        job.host_group,
    )
    return WeightSync(executors, plan.both, engine, verify if settings.verify else None)


def _summary(plan: ReshardPlan, rank: int) -> str:
    cost = plan.cost(rank)
    parts = ("aliased", cost.aliased_bytes), ("copied", cost.copied_bytes), ("received", cost.received_bytes)
    listed = ", ".join(f"{size / 2**20:.1f} MiB {how}" for how, size in parts)
    return "\n".join(filter(None, [f"weight sync, rank {rank}: {listed}", summarise_report(alias_report(plan, rank))]))


def _model_folder(job: Job) -> Path:
    """A folder with ``config.json`` for the engine: the checkpoint's, or one written from the shape."""
    if job.config.model.path is not None:
        return Path(job.config.model.path)
    folder = job.run_dir / "engine_model"
    if job.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        description = hf_config(job.config.model, dtype=str(job.platform.dtype).removeprefix("torch."))
        (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n")
    dist.barrier(job.host_group)
    return folder
