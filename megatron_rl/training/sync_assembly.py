"""Planning the way of the actor's weights into the engine, and binding the plans to both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch.distributed as dist
from torch import Tensor

from megatron_rl.resharding.aliasing import alias_report, summarise_report
from megatron_rl.resharding.block_quantiser import BlockQuantiser
from megatron_rl.resharding.executor import ReshardExecutor, aliased_runs
from megatron_rl.resharding.fan_out import FanOutPlan, plan_transfer
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.quantisation import (
    QuantisedPlans,
    counted_together,
    of_scales,
    only,
    plain_budget,
    plan_quantised,
    scale_tensors,
    split_quantised,
)
from megatron_rl.resharding.spec import LayoutFn, LogicalTensor
from megatron_rl.resharding.verify import verify_transfer
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.rollout.vllm_engine import VllmEngine
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.model_loading import role_weights
from megatron_rl.training.weight_sync import WeightSync
from megatron_rl.weights.names import logical_tensors


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What a sync does."""

    plain: FanOutPlan
    """Weights that the engine keeps in the actor's dtype."""
    quantised: QuantisedPlans | None
    """Weights that it keeps in FP8; they travel first."""

    @property
    def whole(self) -> ReshardPlan:
        """All of it as one, to count bytes."""
        quantised = () if self.quantised is None else (self.quantised.values, self.quantised.scales)
        return counted_together((self.plain.both, *quantised))


def plan_weight_sync(job: Job, actor: MegatronRole) -> SyncPlan:
    """Plan the transfer from the actor's layout to the engine's; what can stay where it is, is aliased if so configured."""
    settings, quantised = job.config.weight_sync, _quantised(job)
    names = {tensor.name for tensor in quantised}
    plain = [tensor for tensor in logical_tensors(job.config.model) if tensor.name not in names]
    stored, wanted = role_weights(job, actor), vllm_rules_layout(job.config.model, job.rollout_layout)
    ranks, engine_ranks = actor.groups.layout.ranks, range(job.rollout_layout.world_size)
    plan = plan_transfer(
        plain,
        only(stored, plain),
        ranks,
        only(wanted, plain),
        engine_ranks,
        itemsize=job.platform.dtype.itemsize,
        budget_bytes=plain_budget(settings.budget_bytes) if quantised else settings.budget_bytes,
        ranks_per_node=job.ranks_per_node,
        fan_out=settings.fan_out,
    )
    same_dtype = all(parameter.dtype == job.platform.dtype for parameter in actor.parameters.values())
    if settings.alias and same_dtype:
        plan = plan.aliased()
    job.say(_summary(plan.both, job.rank))
    if not quantised:
        return SyncPlan(plan, None)
    in_fp8 = plan_quantised(
        quantised,
        stored,
        ranks,
        wanted,
        engine_ranks,
        budget_bytes=settings.budget_bytes,
        ranks_per_node=job.ranks_per_node,
    )
    job.say(f"FP8 {_summary(counted_together((in_fp8.values, in_fp8.scales)), job.rank, with_reasons=False)}")
    return SyncPlan(plan, in_fp8)


def weights_to_share(job: Job, actor: MegatronRole, plan: SyncPlan) -> dict[str, Tensor]:
    """What the engine reads from the actor's own storage on this rank.

    The actor must be complete: its optimizer, when built, moves the weights into buffers of its own.
    """
    return aliased_runs(plan.plain.fetch, job.rank, actor.parameters)


def build_weight_sync(job: Job, actor: MegatronRole, engine: VllmEngine, plan: SyncPlan) -> WeightSync:
    """Bind the plans to their two sides. Collectives: all ranks compare plans."""
    sources, destinations, settings = actor.named_local_parameters(), engine.parameters(), job.config.weight_sync
    executor = partial(
        ReshardExecutor,
        rank=job.rank,
        destinations=destinations,
        group=dist.group.WORLD,
        budget_bytes=settings.budget_bytes,
        transport=settings.transport,
    )
    executors, quantiser = [], None
    if plan.quantised is not None:
        quantiser = BlockQuantiser(plan.quantised.values, job.rank, sources)
        executors.append(executor(plan.quantised.values, sources=sources, quantiser=quantiser))
        executors.append(executor(plan.quantised.scales, sources=quantiser.scales))
    executors.append(executor(plan.plain.fetch, sources=sources))
    if plan.plain.forward.rounds:
        executors.append(executor(plan.plain.forward, sources=destinations))
    for summary in filter(None, (each.transport_summary for each in executors)):
        job.say(summary)
    verify = partial(_verify, job, actor, destinations, quantiser)
    return WeightSync(executors, plan.whole, engine, verify if settings.verify else None)


def _quantised(job: Job) -> list[LogicalTensor]:
    if job.config.rollout.quantization is None:
        return []
    return split_quantised(logical_tensors(job.config.model))[0]


def _verify(job: Job, actor: MegatronRole, destinations: dict[str, Tensor], quantiser: BlockQuantiser | None) -> None:
    """Compare what the engine holds with the actor's weights, quantised once more where they are. Collectives: all ranks."""
    quantised = _quantised(job)
    names = {tensor.name for tensor in quantised}
    plain = [tensor for tensor in logical_tensors(job.config.model) if tensor.name not in names]
    stored, wanted = role_weights(job, actor), vllm_rules_layout(job.config.model, job.rollout_layout)

    def compare(tensors: list[LogicalTensor], cut: Callable[[LayoutFn], LayoutFn], sources: Mapping[str, Tensor]) -> None:
        held, needed = cut(stored)(job.rank), cut(wanted)(job.rank)
        buffers = {fragment.buffer for fragment in needed}
        there = {name: tensor for name, tensor in destinations.items() if name in buffers}
        verify_transfer(tensors, held, sources, needed, there, job.host_group)

    compare(plain, lambda layout: only(layout, plain), actor.named_local_parameters())
    if quantiser is not None:
        compare(quantised, lambda layout: only(layout, quantised), quantiser.quantised())
        compare(scale_tensors(quantised), lambda layout: of_scales(layout, quantised), quantiser.scales)


def _summary(plan: ReshardPlan, rank: int, *, with_reasons: bool = True) -> str:
    cost = plan.cost(rank)
    parts = ("aliased", cost.aliased_bytes), ("copied", cost.copied_bytes), ("received", cost.received_bytes)
    listed = ", ".join(f"{size / 2**20:.1f} MiB {how}" for how, size in parts)
    reasons = summarise_report(alias_report(plan, rank)) if with_reasons else ""
    return "\n".join(filter(None, [f"weight sync, rank {rank}: {listed}", reasons]))
