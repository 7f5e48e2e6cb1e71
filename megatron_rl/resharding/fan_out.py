"""Many engine replicas on a node: each fetches a share over the network, and they complete each other over NVLink.

Without it a node of ``G`` ranks takes in ``W * G / TP_rollout`` bytes, the same weights once per replica; with it
``W * min(1, G / TP_rollout)``. Two ordinary plans say so, to be run one after the other: the first goes from the
trainer's parameters to the engine's, the second from the engine's parameters on one rank to the same ones on another.
Where no node has replicas that all hear from elsewhere, the second is empty and the first is that of ``plan_reshard``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from megatron_rl.resharding.aliasing import with_aliases
from megatron_rl.resharding.collector import collector_paused
from megatron_rl.resharding.matching import Recipe
from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.plan import RankCost, ReshardPlan, Transfer
from megatron_rl.resharding.planner import plan_recipes, plan_reshard, rank_costs
from megatron_rl.resharding.recipes import RankClass, match_layouts
from megatron_rl.resharding.rounds import cut_messages, schedule_rounds, slot_elements
from megatron_rl.resharding.spec import LayoutFn, LogicalTensor


@dataclass(frozen=True, slots=True)
class FanOutPlan:
    """Two plans over the same ranks. Run ``fetch`` first, then ``forward``, whose sources are engine parameters too."""

    fetch: ReshardPlan
    forward: ReshardPlan

    def cost(self, rank: int) -> RankCost:
        """Bytes of both, the staging memory of both included."""
        first, second = self.fetch.cost(rank), self.forward.cost(rank)
        return replace(
            first,
            sent_bytes=first.sent_bytes + second.sent_bytes,
            received_bytes=first.received_bytes + second.received_bytes,
            staging_bytes=first.staging_bytes + second.staging_bytes,
        )

    @property
    def both(self) -> ReshardPlan:
        """The two as one, to count and to time them; it cannot be run, since sources change on the way."""
        costs = {rank: self.cost(rank) for rank in self.fetch.ranks}
        return replace(self.fetch, rounds=self.fetch.rounds + self.forward.rounds, costs=costs)

    def aliased(self) -> FanOutPlan:
        """With every parameter aliased that is a run of one on its rank and that neither plan writes from elsewhere."""
        whole = with_aliases(self.both)
        costs = {
            rank: replace(cost, copied_bytes=whole.costs[rank].copied_bytes, aliased_bytes=whole.costs[rank].aliased_bytes)
            for rank, cost in self.fetch.costs.items()
        }
        return replace(self, fetch=replace(self.fetch, copies=whole.copies, aliases=whole.aliases, costs=costs))


@dataclass(frozen=True, slots=True)
class _Replicas:
    """Ranks of one node that want the same pieces from one source class, none of whose ranks is on that node."""

    source: int
    pieces: tuple[Piece, ...]
    ranks: list[int]


def plan_transfer(
    tensors: Sequence[LogicalTensor],
    source: LayoutFn,
    source_ranks: Iterable[int],
    destination: LayoutFn,
    destination_ranks: Iterable[int],
    *,
    itemsize: int,
    budget_bytes: int,
    ranks_per_node: int,
    fan_out: bool,
) -> FanOutPlan:
    """What a run does: ``plan_fan_out``, or without ``fan_out`` the plan of ``plan_reshard`` with nothing to forward."""
    sides = (tensors, source, source_ranks, destination, destination_ranks)
    if fan_out:
        return plan_fan_out(*sides, itemsize=itemsize, budget_bytes=budget_bytes, ranks_per_node=ranks_per_node)
    plan = plan_reshard(*sides, itemsize=itemsize, budget_bytes=budget_bytes, ranks_per_node=ranks_per_node)
    return FanOutPlan(plan, _forward_plan((), plan.ranks, itemsize, slot_elements(budget_bytes, itemsize)))


@collector_paused()
def plan_fan_out(
    tensors: Sequence[LogicalTensor],
    source: LayoutFn,
    source_ranks: Iterable[int],
    destination: LayoutFn,
    destination_ranks: Iterable[int],
    *,
    itemsize: int,
    budget_bytes: int,
    ranks_per_node: int,
) -> FanOutPlan:
    """As ``plan_reshard``, with the replicas of a node sharing what comes from other nodes.

    Every needed element still arrives once, so bytes received are the same and only their way differs: an element comes
    from a training rank in ``fetch`` or from an engine of the same node in ``forward``.
    Raises ValueError as ``plan_reshard`` does.
    """
    source_ranks, destination_ranks = sorted(source_ranks), sorted(destination_ranks)
    wanted, sources = match_layouts(tensors, source, source_ranks, destination, destination_ranks)
    groups = _replicas(wanted, sources, ranks_per_node)
    # Each plan keeps staging memory of its own, so two of them have half of the budget each.
    max_elements = slot_elements(budget_bytes // 2 if groups else budget_bytes, itemsize)
    shares: dict[tuple[int, int], list[tuple[Piece, ...]]] = {}
    reduced = {rank: replace(recipe, remote=dict(recipe.remote)) for rank, recipe in wanted}
    forwards: list[Transfer] = []
    for replicas in groups:
        key = (id(replicas.pieces), len(replicas.ranks))
        if key not in shares:
            shares[key] = _shares(replicas.pieces, len(replicas.ranks))
        for rank, share in zip(replicas.ranks, shares[key], strict=True):
            reduced[rank].remote[replicas.source] = share
            messages = cut_messages(map(_onward, share), max_elements)
            others = (other for other in replicas.ranks if other != rank)
            forwards += [Transfer(rank, other, message) for other in others for message in messages]
    ranks = {*source_ranks, *destination_ranks}
    fetch = plan_recipes(list(reduced.items()), sources, ranks, itemsize, max_elements, ranks_per_node)
    return FanOutPlan(fetch, _forward_plan(forwards, ranks, itemsize, max_elements))


def _forward_plan(transfers: Sequence[Transfer], ranks: Iterable[int], itemsize: int, max_elements: int) -> ReshardPlan:
    schedule = schedule_rounds(transfers, max_elements)
    return ReshardPlan(itemsize, {}, schedule.rounds, rank_costs(ranks, {}, schedule, itemsize))


def _replicas(wanted: Sequence[tuple[int, Recipe]], sources: Sequence[RankClass], ranks_per_node: int) -> list[_Replicas]:
    nodes = [{rank // ranks_per_node for rank in cls.ranks} for cls in sources]
    groups: dict[tuple[int, int, int], _Replicas] = {}
    for rank, recipe in wanted:
        node = rank // ranks_per_node
        for source, pieces in recipe.remote.items():
            if node not in nodes[source]:
                key = (node, source, id(pieces))
                groups.setdefault(key, _Replicas(source, pieces, [])).ranks.append(rank)
    return [group for group in groups.values() if len(group.ranks) > 1]


def _shares(pieces: tuple[Piece, ...], number: int) -> list[tuple[Piece, ...]]:
    """Cut a list of pieces into ``number`` lists of about equal size; some are empty where there are too few elements."""
    shares: defaultdict[int, list[Piece]] = defaultdict(list)
    total = sum(piece.num_elements for piece in pieces)
    for index, message in enumerate(cut_messages(pieces, -(-total // number))):
        shares[index % number] += message.pieces
    return [tuple(shares[index]) for index in range(number)]


def _onward(piece: Piece) -> Piece:
    """The same engine elements, as the source of another transfer."""
    return replace(
        piece,
        source=piece.destination,
        source_offset=piece.destination_offset,
        source_strides=piece.destination_strides,
    )
