"""Which rank takes which part: the placement that keeps most bytes at home, chosen node by node.

A run lays both grids over the ranks in orders of its own (``choose_rank_orders``). ``choose_permutation`` moves engine shards
freely instead: no run can, but for a training grid in natural order nothing does better.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.parallel.rank_order import RankOrder, node_orders
from megatron_rl.resharding.boxes import Box, intersect, volume
from megatron_rl.resharding.spec import LayoutFn, RankFragments


class Overlaps:
    """Elements that one rank of each layout have in common, counted once per pair of distinct fragment tuples."""

    def __init__(self, source: LayoutFn, destination: LayoutFn) -> None:
        self._source, self._destination = source, destination
        self._held: dict[int, dict[str, list[Box]]] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._sizes: dict[int, int] = {}

    def with_source(self, source: LayoutFn) -> Overlaps:
        """The same for other ranks of the source's fragment tuples; counts are shared."""
        other = Overlaps(source, self._destination)
        other._held, other._counts, other._sizes = self._held, self._counts, self._sizes
        return other

    def needed(self, destination_rank: int) -> int:
        """Elements that a destination rank stores."""
        return self._size(self._destination(destination_rank))

    def between(self, source_rank: int, destination_rank: int) -> int:
        """Elements needed on ``destination_rank`` (natural order) that ``source_rank`` holds."""
        holds, needs = self._source(source_rank), self._destination(destination_rank)
        key = (id(holds), id(needs))
        if key not in self._counts:
            if key[0] not in self._held:
                self._held[key[0]] = _boxes(holds)
            self._counts[key] = _common(self._held[key[0]], needs)
        return self._counts[key]

    def missing(self, slots: Mapping[int, int]) -> dict[int, int]:
        """Rank -> elements that its slot (a destination rank of the natural order) needs and the rank does not hold."""
        return {rank: self.needed(slot) - self.between(rank, slot) for rank, slot in slots.items()}

    def _size(self, fragments: RankFragments) -> int:
        if id(fragments) not in self._sizes:
            self._sizes[id(fragments)] = sum(f.num_elements for f in fragments)
        return self._sizes[id(fragments)]


def choose_permutation(overlaps: Overlaps, ranks: Sequence[int], ranks_per_node: int) -> tuple[int, ...]:
    """Return ``permutation[slot] = rank`` for engines laid over ``ranks``, shards moving inside their node only.

    Slot ``i`` of the natural order is on ``ranks[i]``. Pairs of (what a rank holds, what a slot needs) are matched
    greedily by common elements, which is optimal where sizes divide, since overlaps then nest. Ties keep the natural
    order. Example: TP2 x DP4 to TP8, one node: slots 0..7 go to ranks 0, 4, 2, 6, 1, 5, 3, 7.
    """
    permutation = list(ranks)
    for first in range(0, len(ranks), ranks_per_node):
        slots = range(first, min(first + ranks_per_node, len(ranks)))
        pairs = [
            (-overlaps.between(ranks[place], ranks[slot]), slot != place, slot, place) for slot, place in product(slots, slots)
        ]
        free_slots, free_places = set(slots), set(slots)
        for _, _, slot, place in sorted(pairs):
            if slot in free_slots and place in free_places:
                permutation[slot] = ranks[place]
                free_slots.remove(slot)
                free_places.remove(place)
    kept, natural = (
        sum(overlaps.between(place, slot) for place, slot in zip(order, ranks, strict=True)) for order in (permutation, ranks)
    )
    return tuple(permutation) if kept > natural else tuple(ranks)


def choose_rank_orders(
    sources: Callable[[RankOrder | None], LayoutFn],
    destination: LayoutFn,
    train: ParallelLayout,
    rollout: RolloutLayout,
    ranks_per_node: int,
) -> tuple[RankOrder | None, RankOrder | None]:
    """Orders of the training grid and of the engines' with which most of what an engine needs is already there.

    ``sources``: rank order -> training layout, as ``megatron_layouts`` makes it; ``destination``: of ``rollout`` in natural
    order; both cover the same ranks. Every place of either grid stays on its node, so no process group crosses nodes that
    did not before. Of orders that keep equally much: one grid in natural order, rather the engines', then the pair whose
    worst rank receives least. None stands for the natural order, of both where nothing keeps more.
    Example, on one node: TP2 x DP4 to TP8 gives ``(("data", 4), ("tensor", 2))`` and None; TP8 to TP2 x DP4 gives None and
    ``(("data", 4), ("tensor", 2))``.
    """
    overlaps = Overlaps(sources(None), destination)
    placed = [(order, _slots(replace(rollout, order=order))) for order in _engine_orders(rollout, ranks_per_node)]
    held = [(order, overlaps.with_source(sources(order))) for order in node_orders(train.rank_order, ranks_per_node)]

    def cost(pair: tuple[int, int]) -> tuple[int, int, bool, int]:
        engine, actor = pair
        missing = held[actor][1].missing(placed[engine][1]).values()
        return sum(missing), (engine > 0) + (actor > 0), engine > 0, max(missing)

    engine, actor = min(product(range(len(placed)), range(len(held))), key=cost)
    if cost((engine, actor))[0] == cost((0, 0))[0]:
        return None, None
    return held[actor][0] if actor else None, placed[engine][0] if engine else None


def _engine_orders(rollout: RolloutLayout, ranks_per_node: int) -> list[RankOrder]:
    """Orders in which the ranks of every group ascend, as an engine's must; the natural one first."""
    orders = node_orders(rollout.rank_order, ranks_per_node)
    return [order for order in orders if all(list(g) == sorted(g) for g in replace(rollout, order=order).expert_groups())]


def _slots(rollout: RolloutLayout) -> dict[int, int]:
    """Rank -> the rank on which its slot is in natural order."""
    return {rank: rollout.offset + rollout.index(rank) for rank in rollout.ranks}


def common_elements(holds: RankFragments, needs: RankFragments) -> int:
    """Elements of ``needs`` that ``holds`` has too."""
    return _common(_boxes(holds), needs)


def _boxes(fragments: RankFragments) -> dict[str, list[Box]]:
    boxes: dict[str, list[Box]] = defaultdict(list)
    for f in fragments:
        boxes[f.tensor].append((f.start, f.stop))
    return dict(boxes)


def _common(held: dict[str, list[Box]], needs: RankFragments) -> int:
    # Layers are alike, so few pairs of boxes are new.
    volumes: dict[tuple[Box, Box], int] = {}
    count = 0
    for fragment in needs:
        needed = (fragment.start, fragment.stop)
        for box in held.get(fragment.tensor, ()):
            if (box, needed) not in volumes:
                common = intersect(box, needed)
                volumes[box, needed] = 0 if common is None else volume(common)
            count += volumes[box, needed]
    return count
