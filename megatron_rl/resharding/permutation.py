"""Which rank takes which part: the placement that keeps most bytes at home, chosen node by node.

An in-process vLLM engine wants consecutive ranks, so a run lays the *training* grid over them in another order
(``choose_rank_order``). ``choose_permutation`` moves engine shards freely instead: no run can, but nothing does better.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product

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


def choose_rank_order(
    sources: Callable[[RankOrder | None], LayoutFn],
    natural: RankOrder,
    destination: LayoutFn,
    ranks: Sequence[int],
    ranks_per_node: int,
) -> RankOrder | None:
    """The order of the training grid over ``ranks`` with which most of what their engines need is already there.

    ``sources``: rank order -> training layout, as ``megatron_layouts`` makes it. Every place of the grid stays on its
    node, so no process group crosses nodes that did not before. Of orders that keep equally much, the one whose worst
    rank receives least; the natural order (None) where none keeps more. Example: TP2 x DP4 to TP8 on one node gives
    ``(("data", 4), ("tensor", 2))``, and nothing moves.
    """
    overlaps = Overlaps(sources(None), destination)

    def cost(order: RankOrder) -> tuple[int, int]:
        missing = overlaps.with_source(sources(order)).missing(dict(zip(ranks, ranks, strict=True))).values()
        return sum(missing), max(missing)

    best = min(node_orders(natural, ranks_per_node), key=cost)
    improves = cost(best)[0] < cost(natural)[0]
    return best if improves else None


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
