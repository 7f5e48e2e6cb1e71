"""What a transfer costs before anything runs: bytes per rank against the lower bound, rounds, memory, seconds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.aliasing import alias_candidates
from megatron_rl.resharding.fabric import Fabric, predict_seconds
from megatron_rl.resharding.fan_out import plan_fan_out
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.permutation import Overlaps, choose_permutation
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
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
    rollout: RolloutLayout
    """With the placement the plan uses."""
    fabric: str
    ranks: tuple[RankReport, ...]
    rounds: int
    peak_extra_bytes: int
    predicted_seconds: float
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
    permute: bool = True,
    fan_out: bool = False,
    padded_vocab: int | None = None,
) -> ReshardReport:
    """Plan actor to engine and sum it up.

    ``permute``: place the engine's shards where most bytes already are (ranks must coincide), else keep the order of
    ``rollout``. The bound is that of the best placement either way, so natural order shows what it costs.
    ``fan_out``: replicas of a node share what comes from other nodes. ``padded_vocab``: rows of the trainer's embedding
    over all its ranks; None = as this project's trainer pads.
    Raises ValueError naming the key where a layout does not divide.
    """
    source = megatron_layout(model, train, padded_vocab or padded_vocab_size(model.vocab_size, train.tensor))
    natural = vllm_rules_layout(model, rollout)
    overlaps = Overlaps(source, natural)
    best = rollout
    if tuple(train.ranks) == rollout.ranks:
        best = replace(rollout, permutation=choose_permutation(overlaps, rollout.ranks, fabric.ranks_per_node))
    slot_of = dict(zip(best.ranks, rollout.ranks, strict=True))
    bounds = {rank: (overlaps.needed(slot) - overlaps.between(rank, slot)) * itemsize for rank, slot in slot_of.items()}
    used = best if permute and best.ranks != rollout.ranks else rollout
    destination = natural if used is rollout else lambda rank: natural(slot_of[rank])
    sides = (logical_tensors(model), source, train.ranks, destination, rollout.ranks)
    node = fabric.ranks_per_node
    if fan_out:
        plan = plan_fan_out(*sides, itemsize=itemsize, budget_bytes=budget_bytes, ranks_per_node=node).both
    else:
        plan = plan_reshard(*sides, itemsize=itemsize, budget_bytes=budget_bytes, ranks_per_node=node)
    ranks = _rank_reports(plan, bounds, fabric)
    most_copied = max(ranks, key=lambda r: r.aliased_bytes + r.copied_bytes)
    whole = model_bytes(model, itemsize)
    return ReshardReport(
        model=model.name,
        train=train,
        rollout=used,
        fabric=fabric.name,
        ranks=ranks,
        rounds=len(plan.rounds),
        peak_extra_bytes=max(cost.staging_bytes for cost in plan.costs.values()),
        predicted_seconds=predict_seconds(plan, fabric, most_copied.aliased_bytes),
        gather_bytes=max(0, whole - min(overlaps.held(rank) for rank in rollout.ranks) * itemsize),
        broadcast_bytes=whole,
    )


def model_bytes(model: ModelConfig, itemsize: int) -> int:
    """All tensors of the checkpoint, each once."""
    return sum(prod(tensor.shape) for tensor in logical_tensors(model)) * itemsize


def _rank_reports(plan: ReshardPlan, bounds: dict[int, int], fabric: Fabric) -> tuple[RankReport, ...]:
    sent: defaultdict[int, int] = defaultdict(int)
    received: defaultdict[int, int] = defaultdict(int)
    for t in (t for transfers in plan.rounds for t in transfers):
        if not fabric.same_node(t.source_rank, t.destination_rank):
            size = t.message.num_elements * plan.itemsize
            sent[t.source_rank] += size
            received[t.destination_rank] += size
    aliased = {
        rank: sum(piece.num_elements for piece in pieces) * plan.itemsize for rank, pieces in alias_candidates(plan).items()
    }
    return tuple(
        RankReport(
            rank=rank,
            aliased_bytes=aliased.get(rank, 0),
            copied_bytes=cost.copied_bytes - aliased.get(rank, 0),
            sent_bytes=cost.sent_bytes,
            received_bytes=cost.received_bytes,
            sent_over_network_bytes=sent[rank],
            received_over_network_bytes=received[rank],
            bound_bytes=bounds.get(rank, 0),
        )
        for rank, cost in plan.costs.items()
    )
