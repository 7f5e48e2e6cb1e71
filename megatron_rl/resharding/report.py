"""What a transfer costs before anything runs: bytes per rank against the lower bound, rounds, memory, seconds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from typing import Any

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.aliasing import alias_candidates
from megatron_rl.resharding.fabric import Fabric, predict_seconds
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.permutation import choose_permutation
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """Bytes of one rank."""

    rank: int
    aliased_bytes: int
    """Could stay where they are: one storage for both engines."""
    copied_bytes: int
    """Copied on the rank, aliased ones not counted."""
    sent_bytes: int
    received_bytes: int
    received_over_network_bytes: int
    """Share of received_bytes that crosses nodes."""
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
    broadcast_bytes: int
    """What every rank receives where peers broadcast whole tensors."""

    @property
    def max_received_bytes(self) -> int:
        """Of the worst rank."""
        return max(rank.received_bytes for rank in self.ranks)

    @property
    def bound_ratio(self) -> float:
        """Bytes received by all ranks over the bound; 1.0 where both are 0, infinite where only the bound is."""
        received = sum(rank.received_bytes for rank in self.ranks)
        bound = sum(rank.bound_bytes for rank in self.ranks)
        if bound == 0:
            return 1.0 if received == 0 else float("inf")
        return received / bound

    def to_json_object(self) -> dict[str, Any]:
        """Plain data; ``bound_ratio`` is null where it is infinite."""
        finite = self.bound_ratio != float("inf")
        return {
            "model": self.model,
            "train": asdict(self.train),
            "rollout": asdict(self.rollout),
            "fabric": self.fabric,
            "ranks": [asdict(rank) for rank in self.ranks],
            "max_received_bytes": self.max_received_bytes,
            "bound_ratio": self.bound_ratio if finite else None,
            "peak_extra_bytes": self.peak_extra_bytes,
            "rounds": self.rounds,
            "predicted_seconds": self.predicted_seconds,
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
) -> ReshardReport:
    """Plan actor to engine and sum it up.

    ``permute``: place the engine's shards where most bytes already are (ranks must coincide), else keep the order of
    ``rollout``. The bound is that of the best placement either way, so natural order shows what it costs.
    Raises ValueError naming the key where a layout does not divide.
    """
    natural = _plan(model, train, rollout, itemsize, budget_bytes)
    best, best_rollout = natural, rollout
    if train.ranks == range(rollout.offset, rollout.offset + rollout.world_size):
        best_rollout = replace(rollout, permutation=_placement(model, train, rollout, fabric))
        best = _plan(model, train, best_rollout, itemsize, budget_bytes)
    if best.received_bytes >= natural.received_bytes:
        best, best_rollout = natural, rollout
    plan = best if permute else natural
    bounds = {rank: cost.bound_bytes for rank, cost in best.costs.items()}
    ranks = _rank_reports(plan, bounds, fabric)
    most_copied = max(ranks, key=lambda r: r.aliased_bytes + r.copied_bytes)
    return ReshardReport(
        model=model.name,
        train=train,
        rollout=best_rollout if permute else rollout,
        fabric=fabric.name,
        ranks=ranks,
        rounds=len(plan.rounds),
        peak_extra_bytes=max(cost.staging_bytes for cost in plan.costs.values()),
        predicted_seconds=predict_seconds(plan, fabric, most_copied.aliased_bytes),
        broadcast_bytes=_model_bytes(model, itemsize),
    )


def format_report(report: ReshardReport) -> str:
    """The table for people: one line per rank, GB with three decimals, then the summary."""
    lines = [f"{'rank':>5} {'aliased':>9} {'copied':>9} {'sent':>9} {'received':>9} {'network':>9} {'bound':>9}  GB"]
    for r in report.ranks:
        columns = (
            r.aliased_bytes,
            r.copied_bytes,
            r.sent_bytes,
            r.received_bytes,
            r.received_over_network_bytes,
            r.bound_bytes,
        )
        lines.append(f"{r.rank:>5} " + " ".join(f"{value / 1e9:>9.3f}" for value in columns))
    lines.append(
        f"worst rank receives {report.max_received_bytes / 1e9:.3f} GB, {report.bound_ratio:.3f} x the bound in total; "
        f"{report.rounds} rounds, {report.peak_extra_bytes / 2**20:.0f} MiB extra, "
        f"{report.predicted_seconds * 1e3:.1f} ms on {report.fabric}"
    )
    return "\n".join(lines)


def _plan(model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout, itemsize: int, budget_bytes: int) -> ReshardPlan:
    return plan_reshard(
        logical_tensors(model),
        megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor)),
        train.ranks,
        vllm_rules_layout(model, rollout),
        [rank for group in rollout.tensor_groups() for rank in group],
        itemsize=itemsize,
        budget_bytes=budget_bytes,
    )


def _placement(model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout, fabric: Fabric) -> tuple[int, ...]:
    source = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))
    destination = vllm_rules_layout(model, replace(rollout, permutation=None))
    return choose_permutation(source, destination, train.ranks, fabric.ranks_per_node)


def _rank_reports(plan: ReshardPlan, bounds: dict[int, int], fabric: Fabric) -> tuple[RankReport, ...]:
    network: defaultdict[int, int] = defaultdict(int)
    for t in (t for transfers in plan.rounds for t in transfers):
        if not fabric.same_node(t.source_rank, t.destination_rank):
            network[t.destination_rank] += t.message.num_elements * plan.itemsize
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
            received_over_network_bytes=network[rank],
            bound_bytes=bounds[rank],
        )
        for rank, cost in plan.costs.items()
    )


def _model_bytes(model: ModelConfig, itemsize: int) -> int:
    total = 0
    for tensor in logical_tensors(model):
        count = itemsize
        for extent in tensor.shape:
            count *= extent
        total += count
    return total
