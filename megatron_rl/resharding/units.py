"""Tensors that share parameters, and which of these groups are alike, so that each kind is planned once.

Layers of a model differ in their names only. A *unit* is what has to be planned together: tensors joined by a parameter
that holds several of them on some rank (Q, K and V; the stacked experts of a layer). Units of a *kind* store the same
boxes in the same way on the same classes of ranks, whatever their tensors and parameters are called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.spec import Fragment, RankFragments

Numbered = tuple[int, Fragment]
"""A fragment and its place in the tuple of its class."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The names of one unit, which say all that sets it apart from others of its kind."""

    sources: tuple[str, ...]
    """Parameters that training ranks store it in, sorted; alike units have them in the same order."""
    destinations: tuple[str, ...]
    numbers: Mapping[int, tuple[int, ...]]
    """Class -> places of its fragments in the tuple of the class."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Units that are alike; ``fragments`` are those of the first."""

    fragments: Mapping[int, tuple[Fragment, ...]]
    """Class -> what its ranks store of the unit, in the order of the class."""
    units: list[Unit]

    def named(self, pieces: tuple[Piece, ...], unit: Unit) -> tuple[Piece, ...]:
        """Pieces of the first unit under the names of another."""
        first = self.units[0]
        if unit is first:
            return pieces
        sources = dict(zip(first.sources, unit.sources, strict=True))
        destinations = dict(zip(first.destinations, unit.destinations, strict=True))
        return tuple(
            Piece(
                p.shape,
                sources[p.source],
                p.source_offset,
                p.source_strides,
                destinations[p.destination],
                p.destination_offset,
                p.destination_strides,
            )
            for p in pieces
        )


def find_kinds(
    shapes: Mapping[str, tuple[int, ...]], sources: Sequence[RankFragments], destinations: Sequence[RankFragments]
) -> list[Kind]:
    """Sort everything that is stored into kinds; classes are numbered with the sources first.

    ``shapes``: of every tensor that is stored.
    """
    classes = (*sources, *destinations)
    unit_of = _joined_tensors(classes)
    stored: defaultdict[str, dict[int, list[Numbered]]] = defaultdict(dict)
    for cls, fragments in enumerate(classes):
        of_unit: defaultdict[str, list[Numbered]] = defaultdict(list)
        for numbered in enumerate(fragments):
            of_unit[unit_of[numbered[1].tensor]].append(numbered)
        for name, numbered_fragments in of_unit.items():
            stored[name][cls] = numbered_fragments
    kinds: dict[object, Kind] = {}
    for of_class in stored.values():
        unit = Unit(
            _parameters(of_class, range(len(sources))),
            _parameters(of_class, range(len(sources), len(classes))),
            {cls: tuple(number for number, _ in numbered) for cls, numbered in of_class.items()},
        )
        signature = _signature(of_class, unit, len(sources), shapes)
        if signature not in kinds:
            first = {cls: tuple(fragment for _, fragment in numbered) for cls, numbered in of_class.items()}
            kinds[signature] = Kind(first, [])
        kinds[signature].units.append(unit)
    return list(kinds.values())


def _joined_tensors(classes: Sequence[RankFragments]) -> dict[str, str]:
    """Tensor -> the tensor that stands for its unit."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while (above := parent.setdefault(name, name)) != name:
            parent[name] = name = parent[above]
        return name

    for fragments in classes:
        holders: dict[str, str] = {}
        for fragment in fragments:
            holder = holders.setdefault(fragment.buffer, fragment.tensor)
            if holder != fragment.tensor:
                parent[root(fragment.tensor)] = root(holder)
    tensors = {fragment.tensor for fragments in classes for fragment in fragments}
    return {tensor: root(tensor) for tensor in tensors}


def _parameters(of_class: Mapping[int, list[Numbered]], classes: range) -> tuple[str, ...]:
    return tuple(sorted({f.buffer for cls, numbered in of_class.items() if cls in classes for _, f in numbered}))


def _signature(
    of_class: Mapping[int, list[Numbered]], unit: Unit, num_sources: int, shapes: Mapping[str, tuple[int, ...]]
) -> object:
    """Everything about a unit but its names: boxes and storage by class, tensors and parameters as numbers."""
    tensors: dict[str, int] = {}
    parameters = [{name: index for index, name in enumerate(names)} for names in (unit.sources, unit.destinations)]
    storage: list[object] = []
    for cls, numbered in of_class.items():
        index = parameters[cls >= num_sources]
        storage.append(cls)
        storage += [
            (tensors.setdefault(f.tensor, len(tensors)), f.start, f.stop, index[f.buffer], f.offset, f.strides)
            for _, f in numbered
        ]
    return tuple(storage), tuple(shapes[name] for name in tensors)
