"""What one weight transfer from the actor to the engine moves: by the planner, or by the closed form of its bound."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.deployment import Deployment
from megatron_rl.estimator.parameters import engine_parameters, layer_parts, total_parameters
from megatron_rl.estimator.shared_weights import engine_own_parameters
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.fan_out import plan_transfer
from megatron_rl.resharding.placement import placements
from megatron_rl.weights.names import logical_tensors

MAX_PLANNED_RANKS = 64
"""Above, the closed form stands in for the planner, so that an estimate stays a matter of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBytes:
    """What the busiest rank moves when the actor's weights go to the engine."""

    received_bytes: int
    copied_bytes: int
    bound_bytes: int
    planned: bool
    """By the planner; False = by the closed form, which is the lower bound."""


@cache
def sync_bytes(
    model: ModelConfig,
    train: ParallelLayout,
    rollout: RolloutLayout,
    *,
    itemsize: int,
    budget_bytes: int,
    ranks_per_node: int,
    aliased: bool,
    plan: bool,
) -> SyncBytes:
    """Bytes of one weight transfer on the busiest rank, as a run would do it; ``plan=False`` takes the closed form."""
    dense = model.moe is None and model.mla is None
    if not plan or not dense or train.world_size > MAX_PLANNED_RANKS:
        bound = received_bound_bytes(model, train, rollout.tensor, itemsize)
        stages = range(train.pipeline) if aliased else ()
        written = [engine_own_parameters(model, train, rollout.tensor, stage) for stage in stages]
        needed = max(written, default=engine_parameters(model, rollout.tensor)) * itemsize
        return SyncBytes(received_bytes=bound, copied_bytes=max(0, needed - bound), bound_bytes=bound, planned=False)
    placed = placements(model, train, rollout, ranks_per_node)["run"]
    transfer = plan_transfer(
        logical_tensors(model),
        placed.source,
        placed.train.ranks,
        placed.destination,
        placed.rollout.ranks,
        itemsize=itemsize,
        budget_bytes=budget_bytes,
        ranks_per_node=ranks_per_node,
        fan_out=True,
    )
    costs = (transfer.aliased() if aliased else transfer).both.costs.values()
    return SyncBytes(
        received_bytes=max(max(cost.received_bytes, cost.sent_bytes) for cost in costs),
        copied_bytes=max(cost.copied_bytes for cost in costs),
        bound_bytes=max(cost.bound_bytes for cost in costs),
        planned=True,
    )


def planned_sync(deployment: Deployment, ranks_per_node: int, *, plan: bool) -> SyncBytes | None:
    """Of a deployment's actor and engine; None without an engine."""
    if deployment.engine is None:
        return None
    return sync_bytes(
        deployment.model,
        deployment.roles[0].layout,
        RolloutLayout(tensor=deployment.engine.tensor, data=deployment.engine.data),
        itemsize=deployment.weight_bytes,
        budget_bytes=deployment.sync_budget_bytes,
        ranks_per_node=ranks_per_node,
        aliased=deployment.engine.aliased,
        plan=plan,
    )


def received_bound_bytes(model: ModelConfig, train: ParallelLayout, rollout_tensor: int, itemsize: int) -> int:
    """Least bytes a colocated rank must receive where sizes divide: what it needs minus what it holds.

    ``W_cut (1/TP_r - 1/(PP max(TP, TP_r)))``, replicated weights ``W_rep (1 - 1/PP)``, and routed experts like cut
    weights with EP * ETP for TP.
    """
    parts = [layer_parts(model, layer) for layer in range(model.num_layers)]
    replicated = sum(part.replicated for part in parts) + model.hidden_size
    routed = sum(part.routed for part in parts)
    cut = total_parameters(model) - replicated - routed

    def missing(weights: int, train_degree: int) -> float:
        return weights * (1 / rollout_tensor - 1 / (train.pipeline * max(train_degree, rollout_tensor)))

    least = missing(cut, train.tensor) + missing(routed, train.expert * train.etp)
    return round((least + replicated * (1 - 1 / train.pipeline)) * itemsize)
