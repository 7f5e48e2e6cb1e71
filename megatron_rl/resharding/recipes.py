"""What each destination rank copies at home and which source ranks send the rest, once per kind of rank.

Ranks that store the same fragments (replicas) form one *class*. The boxes of a destination class are matched with the
source classes once; a rank that also belongs to a source class only differs in the tensors which that class holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from megatron_rl.resharding.boxes import Box, intersect, subtract, volume
from megatron_rl.resharding.pieces import Piece, make_piece, merge_adjacent
from megatron_rl.resharding.spec import Fragment, LayoutFn, LogicalTensor, RankFragments


@dataclass(slots=True)
class RankClass:
    """Ranks that store the same fragments."""

    fragments: RankFragments
    ranks: list[int]
    side: str
    """``source`` or ``destination``, for messages."""


@dataclass(slots=True)
class Recipe:
    """How a destination class is served on a rank that also belongs to one source class (or to none)."""

    local: tuple[Piece, ...] = ()
    remote: dict[int, tuple[Piece, ...]] = field(default_factory=dict)
    """Source class -> pieces that one of its ranks sends. Recipes share a tuple where they share the pieces."""
    local_elements: int = 0
    missing_elements: int = 0
    """Needed and not held: the lower bound on what must be received."""


@dataclass(slots=True)
class _Stored:
    """A distinct box of a tensor and, per source class that stores it, the fragment."""

    box: Box
    holders: dict[int, Fragment]


@dataclass(frozen=True, slots=True)
class _Part:
    """A box of one wanted fragment (by number) and the source class that serves it."""

    wanted: int
    box: Box
    source: int
    fragment: Fragment


_Index = dict[str, list[_Stored]]


def rank_classes(layout: LayoutFn, ranks: Iterable[int], side: str) -> list[RankClass]:
    """Group ranks whose layout is the same object; layouts share the tuple among replicas."""
    classes: dict[int, RankClass] = {}
    for rank in ranks:
        fragments = layout(rank)
        if fragments:
            classes.setdefault(id(fragments), RankClass(fragments, [], side)).ranks.append(rank)
    return list(classes.values())


def match_layouts(
    tensors: Sequence[LogicalTensor],
    source: LayoutFn,
    source_ranks: Iterable[int],
    destination: LayoutFn,
    destination_ranks: Iterable[int],
) -> tuple[list[tuple[int, Recipe]], list[RankClass]]:
    """Return (destination rank, recipe) in rank order, and the source classes that recipes number.

    Raises ValueError naming the tensor: unknown to the checkpoint, outside its shape, stored by no source rank, or
    taken by no destination rank.
    """
    sources = rank_classes(source, source_ranks, "source")
    destinations = rank_classes(destination, destination_ranks, "destination")
    _check_boxes(tensors, sources + destinations)
    _check_consumed(tensors, destinations)
    return match_classes(sources, destinations), sources


def match_classes(sources: Sequence[RankClass], destinations: Sequence[RankClass]) -> list[tuple[int, Recipe]]:
    """Return (destination rank, recipe) in rank order; ranks of the same two classes share the recipe.

    Raises ValueError naming the tensor that no source rank stores.
    """
    index = _index(sources)
    source_of = {rank: number for number, cls in enumerate(sources) for rank in cls.ranks}
    recipes: list[tuple[int, Recipe]] = []
    for cls in destinations:
        matched = _Matched(cls, sources, index)
        by_own: dict[int | None, Recipe] = {}
        for rank in cls.ranks:
            own = source_of.get(rank)
            if own not in by_own:
                by_own[own] = matched.recipe(own)
            recipes.append((rank, by_own[own]))
    return sorted(recipes, key=lambda entry: entry[0])


def take(boxes: list[Box], offered: Box) -> tuple[list[Box], list[Box]]:
    """Split ``boxes`` into what lies in ``offered`` and what does not."""
    taken: list[Box] = []
    rest: list[Box] = []
    for box in boxes:
        common = box if box == offered else intersect(box, offered)
        if common is None:
            rest.append(box)
            continue
        taken.append(common)
        if common is not box:
            rest += subtract(box, common)
    return taken, rest


def _check_boxes(tensors: Sequence[LogicalTensor], classes: list[RankClass]) -> None:
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    for cls in classes:
        for f in cls.fragments:
            if f.tensor not in shapes:
                raise ValueError(f"the {cls.side} layout stores {f.tensor!r} in {f.buffer!r}, which the checkpoint lacks")
            shape = shapes[f.tensor]
            inside = len(f.start) == len(shape) and all(0 <= a < b <= n for a, b, n in zip(f.start, f.stop, shape, strict=True))
            if not inside:
                raise ValueError(f"the {cls.side} layout stores {f.start}..{f.stop} of {f.tensor!r}, outside its shape {shape}")


def _check_consumed(tensors: Sequence[LogicalTensor], destinations: list[RankClass]) -> None:
    boxes: dict[str, dict[Box, None]] = defaultdict(dict)
    for cls in destinations:
        for f in cls.fragments:
            boxes[f.tensor][f.start, f.stop] = None
    for tensor in tensors:
        rest: list[Box] = [(tuple(0 for _ in tensor.shape), tensor.shape)]
        for box in boxes[tensor.name]:
            _, rest = take(rest, box)
        if rest:
            raise ValueError(f"no destination rank takes {rest[0][0]}..{rest[0][1]} of {tensor.name!r} {tensor.shape}")


def _index(sources: Sequence[RankClass]) -> _Index:
    boxes: dict[str, dict[Box, _Stored]] = defaultdict(dict)
    for number, cls in enumerate(sources):
        for f in cls.fragments:
            box = (f.start, f.stop)
            stored = boxes[f.tensor].get(box)
            if stored is None:
                stored = boxes[f.tensor][box] = _Stored(box, {})
            stored.holders.setdefault(number, f)
    return {name: list(stored.values()) for name, stored in boxes.items()}


class _Matched:
    """One destination class matched with all source classes, as if none of its ranks held anything."""

    def __init__(self, cls: RankClass, sources: Sequence[RankClass], index: _Index) -> None:
        self._cls, self._sources, self._index = cls, sources, index
        self._parts: dict[int, list[_Part]] = defaultdict(list)
        """By source class."""
        self._of_tensor: dict[str, list[int]] = defaultdict(list)
        self._loads: dict[int, int] = {}
        for number, f in enumerate(cls.fragments):
            self._of_tensor[f.tensor].append(number)
        everything = ((number, [(f.start, f.stop)]) for number, f in enumerate(cls.fragments))
        for part in self._serve(everything, self._loads):
            self._parts[part.source].append(part)
        self._sources_of: dict[int, set[int]] = defaultdict(set)
        for source, parts in self._parts.items():
            for part in parts:
                self._sources_of[part.wanted].add(source)
        self._elements = sum(f.num_elements for f in cls.fragments)
        self._merged: dict[int, tuple[Piece, ...]] = {}

    def recipe(self, own: int | None) -> Recipe:
        """The recipe of a rank that holds what source class ``own`` stores."""
        recipe = Recipe(missing_elements=self._elements)
        held: dict[str, list[Fragment]] = defaultdict(list)
        for f in self._sources[own].fragments if own is not None else ():
            if f.tensor in self._of_tensor:
                held[f.tensor].append(f)
        local: list[Piece] = []
        rests: dict[int, list[Box]] = {}
        """Wanted fragments that are held at least in part, and what of them is not."""
        for tensor, fragments in held.items():
            for number in self._of_tensor[tensor]:
                wanted = self._cls.fragments[number]
                rest: list[Box] = [(wanted.start, wanted.stop)]
                for mine in fragments:
                    taken, rest = take(rest, (mine.start, mine.stop))
                    local += [make_piece(box, mine, wanted) for box in taken]
                    if taken:
                        rests[number] = rest
        recipe.local = merge_adjacent(local)
        recipe.local_elements = sum(piece.num_elements for piece in recipe.local)
        recipe.missing_elements = self._elements - recipe.local_elements
        recipe.remote = self._remote(rests)
        return recipe

    def _remote(self, rests: dict[int, list[Box]]) -> dict[int, tuple[Piece, ...]]:
        """Pieces by source class; lists that the held fragments do not touch are shared among recipes."""
        touched = {source for number in rests for source in self._sources_of[number]}
        changed = {source: [p for p in self._parts[source] if p.wanted not in rests] for source in touched}
        loads = self._loads
        if any(rests.values()):
            loads = self._loads | {source: sum(volume(p.box) for p in parts) for source, parts in changed.items()}
            loads = {source: load for source, load in loads.items() if load}
        for part in self._serve(rests.items(), loads):
            if part.source not in changed:
                changed[part.source] = list(self._parts[part.source])
            changed[part.source].append(part)
        remote = {}
        for source in sorted({*self._parts, *changed}):
            pieces = self._pieces(changed[source]) if source in changed else self._merged_pieces(source)
            if pieces:
                remote[source] = pieces
        return remote

    def _merged_pieces(self, source: int) -> tuple[Piece, ...]:
        if source not in self._merged:
            self._merged[source] = self._pieces(self._parts[source])
        return self._merged[source]

    def _pieces(self, parts: list[_Part]) -> tuple[Piece, ...]:
        return merge_adjacent(make_piece(p.box, p.fragment, self._cls.fragments[p.wanted]) for p in parts)

    def _serve(self, wanted: Iterable[tuple[int, list[Box]]], loads: dict[int, int]) -> Iterator[_Part]:
        """Find a source class for every box; of several holders the one with least to send, updating ``loads``.

        Holders that this rank hears from anyway come first, so that a norm does not cost a message of its own.
        """
        open_choices: list[tuple[int, Box, _Stored]] = []
        for number, rest in wanted:
            tensor = self._cls.fragments[number].tensor
            for stored in self._index.get(tensor, ()):
                if not rest:
                    break
                taken, rest = take(rest, stored.box)
                for box in taken:
                    if len(stored.holders) > 1:
                        open_choices.append((number, box, stored))
                        continue
                    ((source, fragment),) = stored.holders.items()
                    loads[source] = loads.get(source, 0) + volume(box)
                    yield _Part(number, box, source, fragment)
            if rest:
                raise ValueError(f"no source rank stores {rest[0][0]}..{rest[0][1]} of {tensor!r}")
        for number, box, stored in open_choices:
            candidates = [source for source in stored.holders if source in loads] or list(stored.holders)
            source = min(candidates, key=lambda s: (loads.get(s, 0), s))
            loads[source] = loads.get(source, 0) + volume(box)
            yield _Part(number, box, source, stored.holders[source])
