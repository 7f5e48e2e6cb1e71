"""Plans a transfer between any two layouts: pure Python on boxes, no torch, no process group.

Boxes are intersected once per pair of rank classes and kind of tensor (``recipes``), so the work grows with the number of
distinct transfers, not with the number of ranks squared. Every rank takes what it holds itself first; the rest comes from a
rank of its node if one has it, and of those from the least loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from megatron_rl.resharding.collector import collector_paused
from megatron_rl.resharding.matching import Recipe
from megatron_rl.resharding.plan import RankCost, ReshardPlan
from megatron_rl.resharding.recipes import RankClass, match_layouts
from megatron_rl.resharding.rounds import NUM_SLOTS, Schedule, schedule_rounds, slot_elements
from megatron_rl.resharding.senders import assign_senders
from megatron_rl.resharding.spec import LayoutFn, LogicalTensor


@collector_paused()
def plan_reshard(
    tensors: Sequence[LogicalTensor],
    source: LayoutFn,
    source_ranks: Iterable[int],
    destination: LayoutFn,
    destination_ranks: Iterable[int],
    *,
    itemsize: int,
    budget_bytes: int,
    ranks_per_node: int | None = None,
) -> ReshardPlan:
    """Plan how ``destination_ranks`` get every fragment they store from ``source_ranks``; the rank sets may overlap.

    ``itemsize``: bytes per element on the wire. ``budget_bytes``: most extra memory per rank. ``ranks_per_node``: ranks
    ``i`` and ``j`` share a node where ``i // ranks_per_node == j // ranks_per_node``; None = no rank is nearer than
    another. The answer depends on the arguments only, so all ranks plan alike. Every needed element is moved exactly once.
    Raises ValueError naming the tensor: unknown to the checkpoint, outside its shape, stored by no source rank, or
    taken by no destination rank.
    """
    source_ranks, destination_ranks = sorted(source_ranks), sorted(destination_ranks)
    wanted, sources = match_layouts(tensors, source, source_ranks, destination, destination_ranks)
    ranks = {*source_ranks, *destination_ranks}
    return plan_recipes(wanted, sources, ranks, itemsize, slot_elements(budget_bytes, itemsize), ranks_per_node)


def plan_recipes(
    wanted: Sequence[tuple[int, Recipe]],
    sources: Sequence[RankClass],
    ranks: Iterable[int],
    itemsize: int,
    max_elements: int,
    ranks_per_node: int | None,
) -> ReshardPlan:
    """Choose senders and rounds for what each rank is to copy and to receive."""
    schedule = schedule_rounds(assign_senders(wanted, sources, max_elements, ranks_per_node), max_elements)
    copies = {rank: recipe.local for rank, recipe in wanted if recipe.local}
    return ReshardPlan(itemsize, copies, schedule.rounds, rank_costs(ranks, dict(wanted), schedule, itemsize))


def rank_costs(ranks: Iterable[int], wanted: Mapping[int, Recipe], schedule: Schedule, itemsize: int) -> dict[int, RankCost]:
    """Bytes of every rank, in rank order."""
    nothing = Recipe()
    costs = {}
    for rank in sorted(ranks):
        sent, received = schedule.sent.get(rank, []), schedule.received.get(rank, [])
        slots = [loads[slot::NUM_SLOTS] for loads in (sent, received) for slot in range(NUM_SLOTS)]
        recipe = wanted.get(rank, nothing)
        costs[rank] = RankCost(
            rank=rank,
            copied_bytes=recipe.local_elements * itemsize,
            sent_bytes=sum(sent) * itemsize,
            received_bytes=sum(received) * itemsize,
            bound_bytes=recipe.missing_elements * itemsize,
            staging_bytes=sum(max(loads, default=0) for loads in slots) * itemsize,
        )
    return costs
