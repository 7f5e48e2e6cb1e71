"""Which rank takes which engine shard: the placement that keeps most bytes at home, chosen node by node.

An in-process vLLM engine wants consecutive ranks, so the engine cannot be permuted where it runs. Read the other way
round, a permutation says in which order the *training* grid has to be laid over the ranks; until a trainer does so, its
transfers are those of the natural order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product

from megatron_rl.resharding.boxes import Box, intersect, volume
from megatron_rl.resharding.spec import LayoutFn, RankFragments


class Overlaps:
    """Elements that one rank of each layout have in common, counted once per pair of distinct fragment tuples."""

    def __init__(self, source: LayoutFn, destination: LayoutFn) -> None:
        self._source, self._destination = source, destination
        self._held: dict[int, dict[str, list[Box]]] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._sizes: dict[int, int] = {}

    def held(self, source_rank: int) -> int:
        """Elements that a source rank stores."""
        return self._size(self._source(source_rank))

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


def common_elements(holds: RankFragments, needs: RankFragments) -> int:
    """Elements of ``needs`` that ``holds`` has too."""
    return _common(_boxes(holds), needs)


def _boxes(fragments: RankFragments) -> dict[str, list[Box]]:
    boxes: dict[str, list[Box]] = defaultdict(list)
    for f in fragments:
        boxes[f.tensor].append((f.start, f.stop))
    return dict(boxes)


def _common(held: dict[str, list[Box]], needs: RankFragments) -> int:
    count = 0
    for fragment in needs:
        for box in held.get(fragment.tensor, ()):
            common = intersect(box, (fragment.start, fragment.stop))
            count += 0 if common is None else volume(common)
    return count
