"""What each destination rank copies at home and which source ranks send the rest, once per class of ranks.

Ranks that store the same fragments (replicas) form one *class*. Everything is matched once per destination class and kind
of unit (``matching``, ``units``); a rank that also belongs to a source class only differs in the units which that class holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from megatron_rl.resharding.boxes import Box
from megatron_rl.resharding.matching import ClassMatch, Recipe, Stored, StoredBoxes, take
from megatron_rl.resharding.spec import LayoutFn, LogicalTensor, RankFragments
from megatron_rl.resharding.units import Kind, find_kinds


@dataclass(slots=True)
class RankClass:
    """Ranks that store the same fragments."""

    fragments: RankFragments
    ranks: list[int]
    side: str
    """``source`` or ``destination``, for messages."""


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

    Ranks of the same two classes share the recipe. Raises ValueError naming the tensor: unknown to the checkpoint, outside
    its shape, stored by no source rank, or taken by no destination rank.
    """
    sources = rank_classes(source, source_ranks, "source")
    destinations = rank_classes(destination, destination_ranks, "destination")
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    _check_known(shapes, sources + destinations)
    kinds = find_kinds(shapes, [cls.fragments for cls in sources], [cls.fragments for cls in destinations])
    for kind in kinds:
        _check_boxes(kind, shapes, sources + destinations)
    _check_consumed(tensors, kinds, len(sources), destinations)
    stored = [_stored_boxes(kind, len(sources)) for kind in kinds]
    source_of = {rank: number for number, cls in enumerate(sources) for rank in cls.ranks}
    recipes: list[tuple[int, Recipe]] = []
    for number, cls in enumerate(destinations, start=len(sources)):
        match = ClassMatch(number, kinds, stored)
        by_own: dict[int | None, Recipe] = {}
        for rank in cls.ranks:
            own = source_of.get(rank)
            if own not in by_own:
                by_own[own] = match.recipe(own)
            recipes.append((rank, by_own[own]))
    return sorted(recipes, key=lambda entry: entry[0]), sources


def _check_known(shapes: dict[str, tuple[int, ...]], classes: Sequence[RankClass]) -> None:
    for cls in classes:
        for f in cls.fragments:
            if f.tensor not in shapes:
                raise ValueError(f"the {cls.side} layout stores {f.tensor!r} in {f.buffer!r}, which the checkpoint lacks")


def _check_boxes(kind: Kind, shapes: dict[str, tuple[int, ...]], classes: Sequence[RankClass]) -> None:
    for number, fragments in kind.fragments.items():
        for f in fragments:
            shape = shapes[f.tensor]
            inside = len(f.start) == len(shape) and all(0 <= a < b <= n for a, b, n in zip(f.start, f.stop, shape, strict=True))
            if not inside:
                side = classes[number].side
                raise ValueError(f"the {side} layout stores {f.start}..{f.stop} of {f.tensor!r}, outside its shape {shape}")


def _check_consumed(
    tensors: Sequence[LogicalTensor], kinds: Sequence[Kind], num_sources: int, destinations: Sequence[RankClass]
) -> None:
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    taken = {f.tensor for cls in destinations for f in cls.fragments}
    boxes: dict[str, dict[Box, None]] = {name: {} for name in shapes if name not in taken}
    for kind in kinds:
        for number, fragments in kind.fragments.items():
            for f in fragments if number >= num_sources else ():
                boxes.setdefault(f.tensor, {})[f.start, f.stop] = None
    for name, of_tensor in boxes.items():
        rest: list[Box] = [(tuple(0 for _ in shapes[name]), shapes[name])]
        for box in of_tensor:
            _, rest = take(rest, box)
        if rest:
            raise ValueError(f"no destination rank takes {rest[0][0]}..{rest[0][1]} of {name!r} {shapes[name]}")


def _stored_boxes(kind: Kind, num_sources: int) -> StoredBoxes:
    boxes: dict[str, dict[Box, Stored]] = {}
    for number, fragments in kind.fragments.items():
        for f in fragments if number < num_sources else ():
            box = (f.start, f.stop)
            boxes.setdefault(f.tensor, {}).setdefault(box, Stored(box, {})).holders.setdefault(number, f)
    return {name: list(stored.values()) for name, stored in boxes.items()}
