"""What a transfer costs before anything runs: bytes per rank against the lower bound, rounds, memory, seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.fabric import Fabric, predict_seconds
from megatron_rl.resharding.fan_out import plan_transfer
from megatron_rl.resharding.placement import Placement, PlacementName, placements
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.quantisation import counted_together, only, plain_budget, plan_quantised, split_quantised
from megatron_rl.weights.names import logical_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """Bytes of one rank."""

    rank: int
    aliased_bytes: int
    """Stay where they are: one storage for actor and engine."""
    copied_bytes: int
    """Copied on the rank, aliased ones not counted."""
    sent_bytes: int
    received_bytes: int
    sent_over_network_bytes: int
    """Share of sent_bytes that crosses nodes; the rest goes over NVLink."""
    received_over_network_bytes: int
    bound_bytes: int
    """Least this rank must receive under the best placement found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardReport:
    """One pair of layouts. ``to_json_object`` is the machine-readable form."""

    model: str
    train: ParallelLayout
    """In the rank order of the placement that is planned."""
    rollout: RolloutLayout
    """In that order, too."""
    fabric: str
    ranks: tuple[RankReport, ...]
    rounds: int
    peak_extra_bytes: int
    predicted_seconds: float
    order_bytes: Mapping[PlacementName, int]
    """What all ranks receive with each placement; of quantised weights, with the one planned."""
    gather_bytes: int
    """Most that a rank receives where peers gather whole tensors from the training ranks and let the engine cut them."""
    broadcast_bytes: int
    """What every rank receives where peers broadcast whole tensors."""

    @property
    def received_bytes(self) -> int:
        """Of all ranks."""
        return sum(rank.received_bytes for rank in self.ranks)

    @property
    def bound_bytes(self) -> int:
        """Of all ranks."""
        return sum(rank.bound_bytes for rank in self.ranks)

    @property
    def max_received_bytes(self) -> int:
        """Of the worst rank."""
        return max(rank.received_bytes for rank in self.ranks)

    @property
    def bound_ratio(self) -> float:
        """Bytes received by all ranks over the bound; 1.0 where both are 0, infinite where only the bound is."""
        if self.bound_bytes == 0:
            return 1.0 if self.received_bytes == 0 else float("inf")
        return self.received_bytes / self.bound_bytes

    def to_json_object(self) -> dict[str, Any]:
        """Plain data; ``bound_ratio`` is null where it is infinite, ``excess_bytes`` is always a number."""
        finite = self.bound_ratio != float("inf")
        return {
            "model": self.model,
            "train": asdict(self.train),
            "rollout": asdict(self.rollout),
            "fabric": self.fabric,
            "ranks": [asdict(rank) for rank in self.ranks],
            "received_bytes": self.received_bytes,
            "max_received_bytes": self.max_received_bytes,
            "bound_bytes": self.bound_bytes,
            "bound_ratio": self.bound_ratio if finite else None,
            "excess_bytes": self.received_bytes - self.bound_bytes,
            "peak_extra_bytes": self.peak_extra_bytes,
            "rounds": self.rounds,
            "predicted_seconds": self.predicted_seconds,
            "order_bytes": dict(self.order_bytes),
            "gather_bytes": self.gather_bytes,
            "broadcast_bytes": self.broadcast_bytes,
        }


def report_reshard(
    model: ModelConfig,
    train: ParallelLayout,
    rollout: RolloutLayout,
    fabric: Fabric,
    *,
    itemsize: int = 2,
    budget_bytes: int = 256 << 20,
    placement: PlacementName = "run",
    fan_out: bool = True,
    quantised: bool = False,
    padded_vocab: int | None = None,
) -> ReshardReport:
    """Plan actor to engine and sum it up.

    ``placement``: which of ``placements`` to plan; the bound is that of the best one in any case, so that the others show
    what they cost. ``fan_out``: replicas of a node share what comes from other nodes, where that brings fewer bytes over
    the network. ``quantised``: linear weights travel in block-scaled FP8; the bound is then that of the placement planned.
    ``padded_vocab``: rows of the trainer's embedding over all its ranks; None = as this project's trainer pads.
    Raises ValueError naming the key where a layout does not divide.
    """
    choices = placements(model, train, rollout, fabric.ranks_per_node, padded_vocab)
    return _report_placement(
        model,
        choices,
        placement,
        fabric,
        itemsize=itemsize,
        budget_bytes=budget_bytes,
        fan_out=fan_out,
        quantised=quantised,
    )


def report_placements(
    model: ModelConfig,
    train: ParallelLayout,
    rollout: RolloutLayout,
    fabric: Fabric,
    *,
    itemsize: int = 2,
    budget_bytes: int = 256 << 20,
    padded_vocab: int | None = None,
) -> dict[PlacementName, ReshardReport]:
    """As ``report_reshard`` for every placement; equal placements share a report."""
    choices = placements(model, train, rollout, fabric.ranks_per_node, padded_vocab)
    reports: dict[int, ReshardReport] = {}
    for name, choice in choices.items():
        if id(choice) not in reports:
            reports[id(choice)] = _report_placement(
                model, choices, name, fabric, itemsize=itemsize, budget_bytes=budget_bytes, fan_out=True
            )
    return {name: reports[id(choice)] for name, choice in choices.items()}


def _report_placement(
    model: ModelConfig,
    choices: Mapping[PlacementName, Placement],
    name: PlacementName,
    fabric: Fabric,
    *,
    itemsize: int,
    budget_bytes: int,
    fan_out: bool,
    quantised: bool = False,
) -> ReshardReport:
    chosen = choices[name]
    in_fp8, plain = split_quantised(logical_tensors(model)) if quantised else ([], logical_tensors(model))
    plans = [
        plan_transfer(
            plain,
            only(chosen.source, plain),
            chosen.train.ranks,
            only(chosen.destination, plain),
            chosen.rollout.ranks,
            itemsize=itemsize,
            budget_bytes=plain_budget(budget_bytes) if quantised else budget_bytes,
            ranks_per_node=fabric.ranks_per_node,
            fan_out=fan_out,
        )
        .aliased()
        .both
    ]
    bounds = {rank: missing * itemsize for rank, missing in choices["best"].missing_elements.items()}
    if quantised:
        sides = (in_fp8, chosen.source, chosen.train.ranks, chosen.destination, chosen.rollout.ranks)
        both = plan_quantised(*sides, budget_bytes=budget_bytes, ranks_per_node=fabric.ranks_per_node)
        plans += [both.values, both.scales]
        bounds = {rank: sum(plan.cost(rank).bound_bytes for plan in plans) for rank in plans[0].ranks}
    whole_plan = counted_together(plans)
    ranks = _rank_reports(whole_plan, plans, bounds, fabric)
    orders = {order: choice.total_missing * itemsize for order, choice in choices.items()}
    if quantised:  # the others were compared by the bytes of unquantised weights
        orders = {name: whole_plan.received_bytes}
    whole = model_bytes(model, itemsize)
    stored = {id(fragments): fragments for fragments in map(chosen.source, chosen.rollout.ranks)}
    least_held = min(sum(f.num_elements for f in fragments) for fragments in stored.values())
    return ReshardReport(
        model=model.name,
        train=chosen.train,
        rollout=chosen.rollout,
        fabric=fabric.name,
        ranks=ranks,
        rounds=len(whole_plan.rounds),
        peak_extra_bytes=max(cost.staging_bytes for cost in whole_plan.costs.values()),
        predicted_seconds=sum(predict_seconds(plan, fabric) for plan in plans),
        order_bytes=orders,
        gather_bytes=max(0, whole - least_held * itemsize),
        broadcast_bytes=whole,
    )


def model_bytes(model: ModelConfig, itemsize: int) -> int:
    """All tensors of the checkpoint, each once."""
    return sum(prod(tensor.shape) for tensor in logical_tensors(model)) * itemsize


def _rank_reports(
    whole: ReshardPlan, plans: Sequence[ReshardPlan], bounds: Mapping[int, int], fabric: Fabric
) -> tuple[RankReport, ...]:
    sent: defaultdict[int, int] = defaultdict(int)
    received: defaultdict[int, int] = defaultdict(int)
    for itemsize, t in ((plan.itemsize, t) for plan in plans for transfers in plan.rounds for t in transfers):
        if not fabric.same_node(t.source_rank, t.destination_rank):
            size = t.message.num_elements * itemsize
            sent[t.source_rank] += size
            received[t.destination_rank] += size
    return tuple(
        RankReport(
            rank=rank,
            aliased_bytes=cost.aliased_bytes,
            copied_bytes=cost.copied_bytes,
            sent_bytes=cost.sent_bytes,
            received_bytes=cost.received_bytes,
            sent_over_network_bytes=sent[rank],
            received_over_network_bytes=received[rank],
            bound_bytes=bounds.get(rank, 0),
        )
        for rank, cost in whole.costs.items()
    )
