"""Plans a transfer between any two layouts: pure Python on boxes, no torch, no process group.

Ranks that store the same fragments (replicas) form one *class*. Boxes are intersected once per pair of classes, so the
work grows with the number of distinct transfers, not with the number of ranks squared. Every rank takes what it holds
itself first; the rest comes from the least loaded rank that has it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from megatron_rl.resharding.boxes import Box, intersect, subtract, volume
from megatron_rl.resharding.pieces import Piece, make_piece, merge_adjacent
from megatron_rl.resharding.plan import RankCost, ReshardPlan, Round, Transfer
from megatron_rl.resharding.rounds import NUM_SLOTS, cut_messages, schedule_rounds, slot_elements
from megatron_rl.resharding.spec import Fragment, LayoutFn, LogicalTensor, RankFragments


def plan_reshard(
    tensors: Sequence[LogicalTensor],
    source: LayoutFn,
    source_ranks: Iterable[int],
    destination: LayoutFn,
    destination_ranks: Iterable[int],
    *,
    itemsize: int,
    budget_bytes: int,
) -> ReshardPlan:
    """Plan how ``destination_ranks`` get every fragment they store from ``source_ranks``; the rank sets may overlap.

    ``itemsize``: bytes per element on the wire. ``budget_bytes``: most extra memory per rank. The answer depends on the
    arguments only, so all ranks plan alike. Every needed element is moved exactly once.
    Raises ValueError naming the tensor: unknown to the checkpoint, outside its shape, stored by no source rank, or
    taken by no destination rank.
    """
    source_ranks, destination_ranks = sorted(source_ranks), sorted(destination_ranks)
    sources = _classes(source, source_ranks, "source")
    destinations = _classes(destination, destination_ranks, "destination")
    _check_boxes(tensors, sources + destinations)
    _check_consumed(tensors, destinations)
    wanted = _recipes(sources, destinations)
    max_elements = slot_elements(budget_bytes, itemsize)
    rounds = schedule_rounds(_assign(wanted, sources, max_elements), max_elements)
    copies = {rank: recipe.local for rank, recipe in wanted if recipe.local}
    return ReshardPlan(itemsize, copies, rounds, _costs({*source_ranks, *destination_ranks}, wanted, rounds, itemsize))


@dataclass(slots=True)
class _Class:
    """Ranks that store the same fragments."""

    fragments: RankFragments
    ranks: list[int]
    side: str


@dataclass(slots=True)
class _Stored:
    """A distinct box of a tensor and, per source class that stores it, the fragment."""

    box: Box
    holders: dict[int, Fragment]


@dataclass(slots=True)
class _Recipe:
    """How a destination class is served on a rank that also belongs to one source class (or to none)."""

    local: tuple[Piece, ...] = ()
    remote: dict[int, tuple[Piece, ...]] = field(default_factory=dict)
    """Source class -> pieces that one of its ranks sends."""
    local_elements: int = 0
    missing_elements: int = 0
    """Needed and not held: the lower bound on what must be received."""


def _classes(layout: LayoutFn, ranks: Iterable[int], side: str) -> list[_Class]:
    """Group ranks whose layout is the same object; layouts share the tuple among replicas."""
    classes: dict[int, _Class] = {}
    for rank in ranks:
        fragments = layout(rank)
        if fragments:
            classes.setdefault(id(fragments), _Class(fragments, [], side)).ranks.append(rank)
    return list(classes.values())


def _check_boxes(tensors: Sequence[LogicalTensor], classes: list[_Class]) -> None:
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    for cls in classes:
        for f in cls.fragments:
            if f.tensor not in shapes:
                raise ValueError(f"the {cls.side} layout stores {f.tensor!r} in {f.buffer!r}, which the checkpoint lacks")
            shape = shapes[f.tensor]
            inside = len(f.start) == len(shape) and all(0 <= a < b <= n for a, b, n in zip(f.start, f.stop, shape, strict=True))
            if not inside:
                raise ValueError(f"the {cls.side} layout stores {f.start}..{f.stop} of {f.tensor!r}, outside its shape {shape}")


def _check_consumed(tensors: Sequence[LogicalTensor], destinations: list[_Class]) -> None:
    boxes: dict[str, dict[Box, None]] = defaultdict(dict)
    for cls in destinations:
        for f in cls.fragments:
            boxes[f.tensor][f.start, f.stop] = None
    for tensor in tensors:
        rest: list[Box] = [(tuple(0 for _ in tensor.shape), tensor.shape)]
        for box in boxes[tensor.name]:
            rest = _without(rest, box)
        if rest:
            raise ValueError(f"no destination rank takes {rest[0][0]}..{rest[0][1]} of {tensor.name!r} {tensor.shape}")


def _without(boxes: list[Box], hole: Box) -> list[Box]:
    rest: list[Box] = []
    for box in boxes:
        common = intersect(box, hole)
        rest += [box] if common is None else subtract(box, common)
    return rest


def _index(sources: list[_Class]) -> dict[str, list[_Stored]]:
    boxes: dict[str, dict[Box, _Stored]] = defaultdict(dict)
    for number, cls in enumerate(sources):
        for f in cls.fragments:
            box = (f.start, f.stop)
            boxes[f.tensor].setdefault(box, _Stored(box, {})).holders.setdefault(number, f)
    return {name: list(stored.values()) for name, stored in boxes.items()}


def _recipes(sources: list[_Class], destinations: list[_Class]) -> list[tuple[int, _Recipe]]:
    """(rank, recipe) in rank order; ranks of the same two classes share the recipe."""
    index = _index(sources)
    source_of = {rank: number for number, cls in enumerate(sources) for rank in cls.ranks}
    recipes: dict[tuple[int, int | None], _Recipe] = {}
    wanted: list[tuple[int, _Recipe]] = []
    for number, cls in enumerate(destinations):
        for rank in cls.ranks:
            own = source_of.get(rank)
            if (number, own) not in recipes:
                recipes[number, own] = _recipe(cls, sources, own, index)
            wanted.append((rank, recipes[number, own]))
    return sorted(wanted, key=lambda entry: entry[0])


def _recipe(cls: _Class, sources: list[_Class], own: int | None, index: dict[str, list[_Stored]]) -> _Recipe:
    """Serve every fragment of ``cls`` from source class ``own`` first, the rest from the other classes."""
    held: dict[str, list[Fragment]] = defaultdict(list)
    for f in sources[own].fragments if own is not None else ():
        held[f.tensor].append(f)
    local: list[Piece] = []
    open_choices: list[tuple[Box, _Stored, Fragment]] = []
    remote: dict[int, list[Piece]] = defaultdict(list)
    recipe = _Recipe()
    for f in cls.fragments:
        rest: list[Box] = [(f.start, f.stop)]
        for mine in held[f.tensor]:
            taken, rest = _take(rest, (mine.start, mine.stop))
            local += [make_piece(box, mine, f) for box in taken]
            recipe.local_elements += sum(map(volume, taken))
        recipe.missing_elements += sum(map(volume, rest))
        for stored in index.get(f.tensor, ()):
            if not rest:
                break
            taken, rest = _take(rest, stored.box)
            for box in taken:
                if len(stored.holders) == 1:
                    ((number, fragment),) = stored.holders.items()
                    remote[number].append(make_piece(box, fragment, f))
                else:
                    open_choices.append((box, stored, f))
        if rest:
            raise ValueError(f"no source rank stores {rest[0][0]}..{rest[0][1]} of {f.tensor!r}")
    _choose_holders(open_choices, remote)
    recipe.local = merge_adjacent(local)
    recipe.remote = {number: merge_adjacent(pieces) for number, pieces in sorted(remote.items())}
    return recipe


def _take(boxes: list[Box], offered: Box) -> tuple[list[Box], list[Box]]:
    """Split ``boxes`` into what lies in ``offered`` and what does not."""
    taken: list[Box] = []
    rest: list[Box] = []
    for box in boxes:
        common = intersect(box, offered)
        if common is None:
            rest.append(box)
        else:
            taken.append(common)
            rest += subtract(box, common)
    return taken, rest


def _choose_holders(choices: list[tuple[Box, _Stored, Fragment]], remote: dict[int, list[Piece]]) -> None:
    """Give each replicated box to the holder with least to send, among those this rank hears from anyway if any."""
    loads = {number: sum(p.num_elements for p in pieces) for number, pieces in remote.items()}
    for box, stored, wanted in choices:
        candidates = [number for number in stored.holders if number in loads] or list(stored.holders)
        number = min(candidates, key=lambda n: (loads.get(n, 0), n))
        remote[number].append(make_piece(box, stored.holders[number], wanted))
        loads[number] = loads.get(number, 0) + volume(box)


def _assign(wanted: list[tuple[int, _Recipe]], sources: list[_Class], max_elements: int) -> list[Transfer]:
    """Choose the sending rank of each message: the least loaded replica, striping where replicas outnumber receivers."""
    receivers: defaultdict[int, int] = defaultdict(int)
    for _, recipe in wanted:
        for number in recipe.remote:
            receivers[number] += 1
    loads = [[(0, rank) for rank in cls.ranks] for cls in sources]
    messages = {}
    transfers = []
    for rank, recipe in wanted:
        for number, pieces in recipe.remote.items():
            stripes = max(1, len(sources[number].ranks) // receivers[number])
            key = (id(pieces), stripes)
            if key not in messages:
                total = sum(piece.num_elements for piece in pieces)
                messages[key] = cut_messages(pieces, min(max_elements, -(-total // stripes)))
            load, sender = heapq.heappop(loads[number])
            for message in messages[key]:
                if stripes > 1:
                    load, sender = heapq.heappushpop(loads[number], (load, sender))
                transfers.append(Transfer(sender, rank, message))
                load += message.num_elements
            heapq.heappush(loads[number], (load, sender))
    return transfers


def _costs(ranks: set[int], wanted: list[tuple[int, _Recipe]], rounds: tuple[Round, ...], itemsize: int) -> dict[int, RankCost]:
    sent: defaultdict[int, int] = defaultdict(int)
    received: defaultdict[int, int] = defaultdict(int)
    slots: defaultdict[tuple[str, int, int], int] = defaultdict(int)
    for number, transfers in enumerate(rounds):
        filled: defaultdict[tuple[str, int], int] = defaultdict(int)
        for t in transfers:
            size = t.message.num_elements * itemsize
            sent[t.source_rank] += size
            received[t.destination_rank] += size
            filled["send", t.source_rank] += size
            filled["receive", t.destination_rank] += size
        for (way, rank), size in filled.items():
            slot = (way, rank, number % NUM_SLOTS)
            slots[slot] = max(slots[slot], size)
    staging: defaultdict[int, int] = defaultdict(int)
    for (_, rank, _), size in slots.items():
        staging[rank] += size
    needs = dict(wanted)
    nothing = _Recipe()
    return {
        rank: RankCost(
            rank=rank,
            copied_bytes=needs.get(rank, nothing).local_elements * itemsize,
            sent_bytes=sent[rank],
            received_bytes=received[rank],
            bound_bytes=needs.get(rank, nothing).missing_elements * itemsize,
            staging_bytes=staging[rank],
        )
        for rank in sorted(ranks)
    }
