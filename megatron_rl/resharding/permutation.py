"""Which rank takes which engine shard: the placement that keeps most bytes at home, chosen node by node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product

from megatron_rl.resharding.boxes import intersect, volume
from megatron_rl.resharding.spec import LayoutFn, RankFragments


def choose_permutation(source: LayoutFn, destination: LayoutFn, ranks: Sequence[int], ranks_per_node: int) -> tuple[int, ...]:
    """Return ``permutation[slot] = rank`` for engines laid over ``ranks``, shards moving inside their node only.

    ``destination`` maps the natural order (slot ``i`` on ``ranks[i]``). Pairs of (what a rank holds, what a slot needs)
    are matched greedily by common elements, which is optimal where sizes divide, since overlaps then nest. Ties keep
    the natural order. Example: TP2 x DP4 to TP8, one node: slots 0..7 go to ranks 0, 4, 2, 6, 1, 5, 3, 7.
    """
    holds = [source(rank) for rank in ranks]
    needs = [destination(rank) for rank in ranks]
    overlaps: dict[tuple[int, int], int] = {}
    permutation = list(ranks)
    for first in range(0, len(ranks), ranks_per_node):
        slots = range(first, min(first + ranks_per_node, len(ranks)))
        pairs = []
        for slot, place in product(slots, slots):
            key = (id(needs[slot]), id(holds[place]))
            if key not in overlaps:
                overlaps[key] = common_elements(holds[place], needs[slot])
            pairs.append((-overlaps[key], slot != place, slot, place))
        free_slots, free_places = set(slots), set(slots)
        for _, _, slot, place in sorted(pairs):
            if slot in free_slots and place in free_places:
                permutation[slot] = ranks[place]
                free_slots.remove(slot)
                free_places.remove(place)
    return tuple(permutation)


def common_elements(holds: RankFragments, needs: RankFragments) -> int:
    """Elements of ``needs`` that ``holds`` has too."""
    held = defaultdict(list)
    for fragment in holds:
        held[fragment.tensor].append((fragment.start, fragment.stop))
    count = 0
    for fragment in needs:
        for box in held[fragment.tensor]:
            common = intersect(box, (fragment.start, fragment.stop))
            count += 0 if common is None else volume(common)
    return count
