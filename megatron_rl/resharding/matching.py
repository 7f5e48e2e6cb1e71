"""What one class of destination ranks takes from which source classes, planned once per kind of unit.

Only choices between several holders of a box are made unit by unit, since they depend on what each holder sends already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from megatron_rl.resharding.boxes import Box, intersect, subtract, volume
from megatron_rl.resharding.pieces import Piece, in_order, make_piece, merge_adjacent
from megatron_rl.resharding.spec import Fragment
from megatron_rl.resharding.units import Kind

_Sources = tuple[int, ...]
"""The source class of each choice of a unit, in the order of the choices."""


@dataclass(slots=True)
class Recipe:
    """How a destination class is served on a rank that also belongs to one source class (or to none)."""

    local: tuple[Piece, ...] = ()
    remote: dict[int, tuple[Piece, ...]] = field(default_factory=dict)
    """Source class -> pieces that one of its ranks sends. Recipes share a tuple where they share the pieces."""
    local_elements: int = 0
    missing_elements: int = 0
    """Needed and not held: the lower bound on what must be received."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A distinct box of a tensor and, per source class that stores it, the fragment."""

    box: Box
    holders: dict[int, Fragment]


StoredBoxes = Mapping[str, Sequence[Stored]]
"""By tensor, for the first unit of a kind."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A box of one wanted fragment (by number) and the source class that serves it."""

    wanted: int
    box: Box
    source: int
    fragment: Fragment


@dataclass(frozen=True, slots=True)
class _Choice:
    """A box of one wanted fragment (by number) that several source classes hold."""

    wanted: int
    box: Box
    elements: int
    holders: Mapping[int, Fragment]
    """In ascending order of the class."""

    def part(self, source: int) -> _Part:
        return _Part(self.wanted, self.box, source, self.holders[source])

    def pick(self, loads: dict[int, int]) -> int:
        """The holder with least to send, of equal ones the first; the box is added to its load.

        Holders that the rank hears from anyway come first, so that a norm does not cost a message of its own.
        """
        best, least = next(iter(self.holders)), None
        for source in self.holders:
            load = loads.get(source)
            if load is not None and (least is None or load < least):
                best, least = source, load
        loads[best] = (least or 0) + self.elements
        return best


@dataclass(frozen=True, slots=True)
class _Served:
    """Where wanted boxes come from: settled where one class holds them."""

    parts: list[_Part]
    choices: list[_Choice]

    def chosen(self, sources: _Sources) -> list[_Part]:
        """Every part, the choices made."""
        return self.parts + [choice.part(source) for choice, source in zip(self.choices, sources, strict=True)]


@dataclass(frozen=True, slots=True)
class _Held:
    """What a rank of one source class has of a unit, and where the rest comes from."""

    own: int
    """The source class."""
    local: tuple[Piece, ...]
    touched: frozenset[int]
    """Wanted fragments that are held at least in part."""
    rest: _Served
    held_first: tuple[int, ...]
    """For every choice, the place in the class's list of the first held fragment of its tensor."""

    @property
    def elements(self) -> int:
        return sum(piece.num_elements for piece in self.local)


class _KindMatch:
    """One kind and one destination class, matched as if none of the class's ranks held anything, and for ranks that do."""

    def __init__(self, kind: Kind, wanted: tuple[Fragment, ...], stored: StoredBoxes) -> None:
        self.kind, self.wanted, self._stored = kind, wanted, stored
        self.whole = self._serve((number, [(f.start, f.stop)]) for number, f in enumerate(wanted))
        self.sources: list[_Sources] = []
        """For every unit, the choices made for the class."""
        self._held: dict[int, _Held | None] = {}
        self._pieces: dict[tuple[_Sources, int | None, _Sources], dict[int, tuple[Piece, ...]]] = {}
        self._named: dict[tuple[int, int], tuple[Piece, ...]] = {}

    def held(self, own: int) -> _Held | None:
        """What a rank of source class ``own`` has; None where it has nothing."""
        if own not in self._held:
            self._held[own] = self._hold(own)
        return self._held[own]

    def released(self, held: _Held, sources: _Sources) -> dict[int, int]:
        """Source class -> elements of touched fragments that it would send to a rank without any."""
        loads: dict[int, int] = {}
        for part in self.whole.chosen(sources):
            if part.wanted in held.touched:
                loads[part.source] = loads.get(part.source, 0) + volume(part.box)
        return loads

    def pieces(self, sources: _Sources, own: int | None = None, rest: _Sources = ()) -> dict[int, tuple[Piece, ...]]:
        """Source class -> pieces of the first unit for a class with these choices, on a rank of ``own``."""
        key = (sources, own, rest)
        if key not in self._pieces:
            parts = self.whole.chosen(sources)
            held = None if own is None else self.held(own)
            if held is not None:
                parts = [part for part in parts if part.wanted not in held.touched] + held.rest.chosen(rest)
            by_source: defaultdict[int, list[Piece]] = defaultdict(list)
            for part in parts:
                by_source[part.source].append(make_piece(part.box, part.fragment, self.wanted[part.wanted]))
            self._pieces[key] = {source: merge_adjacent(pieces) for source, pieces in by_source.items()}
        return self._pieces[key]

    def named_pieces(self, unit: int, source: int) -> tuple[Piece, ...]:
        """Pieces of one unit from one source class, for ranks that hold nothing of it."""
        if (unit, source) not in self._named:
            pieces = self.pieces(self.sources[unit])[source]
            self._named[unit, source] = self.kind.named(pieces, self.kind.units[unit])
        return self._named[unit, source]

    def _hold(self, own: int) -> _Held | None:
        local: list[Piece] = []
        rests: dict[int, list[Box]] = {}
        first: dict[str, int] = {}
        mine = self.kind.fragments.get(own, ())
        for place, fragment in enumerate(mine):
            first.setdefault(fragment.tensor, place)
        for number, wanted in enumerate(self.wanted):
            if wanted.tensor not in first:
                continue
            rest: list[Box] = [(wanted.start, wanted.stop)]
            for fragment in mine:
                if fragment.tensor == wanted.tensor:
                    taken, rest = take(rest, (fragment.start, fragment.stop))
                    local += [make_piece(box, fragment, wanted) for box in taken]
                    if taken:
                        rests[number] = rest
        if not rests:
            return None
        served = self._serve(rests.items())
        held_first = tuple(first[self.wanted[choice.wanted].tensor] for choice in served.choices)
        return _Held(own, merge_adjacent(local), frozenset(rests), served, held_first)

    def _serve(self, wanted: Iterable[tuple[int, list[Box]]]) -> _Served:
        """Find a source class for every box; several classes leave a choice."""
        served = _Served([], [])
        for number, rest in wanted:
            tensor = self.wanted[number].tensor
            for stored in self._stored.get(tensor, ()):
                if not rest:
                    break
                taken, rest = take(rest, stored.box)
                if len(stored.holders) > 1:
                    served.choices.extend(_Choice(number, box, volume(box), stored.holders) for box in taken)
                else:
                    ((source, fragment),) = stored.holders.items()
                    served.parts.extend(_Part(number, box, source, fragment) for box in taken)
            if rest:
                raise ValueError(f"no source rank stores {rest[0][0]}..{rest[0][1]} of {tensor!r}")
        return served


class ClassMatch:
    """One destination class matched with all source classes."""

    def __init__(self, number: int, kinds: Sequence[Kind], stored: Sequence[StoredBoxes]) -> None:
        """Match class ``number``; ``stored`` belongs to ``kinds``, one by one.

        Raises ValueError naming a tensor that no source rank stores.
        """
        self._number = number
        self._matches = [
            _KindMatch(kind, kind.fragments[number], of_kind)
            for kind, of_kind in zip(kinds, stored, strict=True)
            if number in kind.fragments
        ]
        self._elements = sum(len(m.kind.units) * sum(f.num_elements for f in m.wanted) for m in self._matches)
        self._loads: dict[int, int] = {}
        self._add_parts(((m, m.whole) for m in self._matches), self._loads)
        choices = self._choose([(m, m.whole, None) for m in self._matches], self._loads)
        for match, sources in zip(self._matches, choices, strict=True):
            match.sources = sources
        self._shared: dict[int, tuple[Piece, ...]] = {}

    def recipe(self, own: int | None) -> Recipe:
        """The recipe of a rank that holds what source class ``own`` stores."""
        holding = [(m, held) for m in self._matches if own is not None and (held := m.held(own)) is not None]
        local = [p for m, held in holding for unit in m.kind.units for p in m.kind.named(held.local, unit)]
        local_elements = sum(len(m.kind.units) * held.elements for m, held in holding)
        return Recipe(
            local=tuple(sorted(local, key=in_order)),
            remote=self._remote(own, holding),
            local_elements=local_elements,
            missing_elements=self._elements - local_elements,
        )

    def _remote(self, own: int | None, holding: Sequence[tuple[_KindMatch, _Held]]) -> dict[int, tuple[Piece, ...]]:
        """Pieces by source class; lists that the held fragments do not touch are shared among recipes."""
        released: dict[int, int] = {}
        for match, held in holding:
            for sources in match.sources:
                for source, elements in match.released(held, sources).items():
                    released[source] = released.get(source, 0) + elements
        kept = {source: load - released.get(source, 0) for source, load in self._loads.items()}
        loads = {source: load for source, load in kept.items() if load}
        changed = set(released)
        changed |= self._add_parts(((m, held.rest) for m, held in holding), loads)
        rests = self._choose([(m, held.rest, held) for m, held in holding], loads)
        changed.update(source for of_unit in rests for sources in of_unit for source in sources)
        collected: defaultdict[int, list[Piece]] = defaultdict(list)
        rest_of = {id(match): of_unit for (match, _), of_unit in zip(holding, rests, strict=True)}
        for match in self._matches:
            self._collect(match, own, rest_of.get(id(match)), changed, collected)
        remote = {}
        for source in sorted({*self._loads, *changed}):
            pieces = tuple(sorted(collected[source], key=in_order)) if source in changed else self._shared_pieces(source)
            if pieces:
                remote[source] = pieces
        return remote

    @staticmethod
    def _collect(
        match: _KindMatch,
        own: int | None,
        rests: list[_Sources] | None,
        changed: set[int],
        collected: defaultdict[int, list[Piece]],
    ) -> None:
        """Add the pieces of every unit that come from changed sources; ``rests``: choices where the rank holds something."""
        for index, (unit, sources) in enumerate(zip(match.kind.units, match.sources, strict=True)):
            if rests is None:
                for source in changed.intersection(match.pieces(sources)):
                    collected[source] += match.named_pieces(index, source)
                continue
            for source, pieces in match.pieces(sources, own, rests[index]).items():
                if source in changed:
                    collected[source] += match.kind.named(pieces, unit)

    def _shared_pieces(self, source: int) -> tuple[Piece, ...]:
        if source not in self._shared:
            collected: defaultdict[int, list[Piece]] = defaultdict(list)
            for match in self._matches:
                self._collect(match, None, None, {source}, collected)
            self._shared[source] = tuple(sorted(collected[source], key=in_order))
        return self._shared[source]

    @staticmethod
    def _add_parts(served: Iterable[tuple[_KindMatch, _Served]], loads: dict[int, int]) -> set[int]:
        """Add what is settled, over all units, to the loads; return its source classes."""
        sources = set()
        for match, of_match in served:
            for part in of_match.parts:
                loads[part.source] = loads.get(part.source, 0) + len(match.kind.units) * volume(part.box)
                sources.add(part.source)
        return sources

    def _choose(
        self, served: Sequence[tuple[_KindMatch, _Served, _Held | None]], loads: dict[int, int]
    ) -> list[list[_Sources]]:
        """Make every choice of every unit, in the order of the fragments, adding to the loads.

        What is left of a rank that holds something goes by the order of what it holds first.
        """
        queue = []
        for at, (match, of_match, held) in enumerate(served):
            for index, unit in enumerate(match.kind.units):
                for number, choice in enumerate(of_match.choices):
                    first = 0 if held is None else unit.numbers[held.own][held.held_first[number]]
                    queue.append((first, unit.numbers[self._number][choice.wanted], at, index, number))
        chosen: list[list[list[int]]] = [[[] for _ in match.kind.units] for match, _, _ in served]
        for _, _, at, index, number in sorted(queue):
            chosen[at][index].append(served[at][1].choices[number].pick(loads))
        return [[tuple(sources) for sources in of_units] for of_units in chosen]


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
