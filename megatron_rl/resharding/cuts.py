"""From a naming rule to fragments: what one tensor-parallel rank stores of one local parameter.

Shapes: ``rows`` are indices of dim 0; a matrix has ``width`` columns, a bias is a matrix of width 1 without the dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from megatron_rl.config.model import ModelConfig
from megatron_rl.resharding.spec import Fragment, LogicalTensor
from megatron_rl.weights.names import Cut, Rule, has_experts, renumbered


@dataclass(frozen=True, slots=True)
class Slice:
    """Place ``index`` among ``size`` tensor-parallel ranks."""

    index: int
    size: int

    def of(self, extent: int) -> tuple[int, int]:
        """This rank's [first, last) of an evenly cut extent."""
        assert extent % self.size == 0, f"{extent} is not divisible by {self.size}"
        step = extent // self.size
        return self.index * step, (self.index + 1) * step


def cut_rule(
    rule: Rule, shapes: Mapping[str, LogicalTensor], model: ModelConfig, place: Slice, padded_vocab: int
) -> Iterator[Fragment]:
    """Yield the fragments of the local parameter ``rule.local`` on tensor-parallel rank ``place``."""
    parts = [shapes[name] for name in rule.parts]
    match rule.cut:
        case Cut.REPLICATED:
            at = 0
            for part in parts:
                yield _rows(part, 0, part.shape[0], rule.local, at)
                at += part.shape[0]
        case Cut.VOCAB:
            first, last = place.of(padded_vocab)
            if first < model.vocab_size:
                yield _rows(parts[0], first, min(last, model.vocab_size), rule.local, 0)
        case Cut.COLUMNS:
            yield _columns(parts[0], place, rule.local)
        case Cut.STACKED_ROWS:
            at = 0
            for part in parts:
                first, last = place.of(part.shape[0])
                yield _rows(part, first, last, rule.local, at)
                at += last - first
        case Cut.STACKED_HEADS:
            yield from _stacked_heads(parts, rule.local, model, place)
        case Cut.ACTOR_HEADS:
            divides = model.num_key_value_heads % place.size == 0
            yield from (_stacked_heads if divides else _grouped_heads)(parts, rule.local, model, place)


class LayerFragments:
    """Fragments of decoder layers: worked out for the first layer of each kind, renumbered for those that are alike."""

    def __init__(self, model: ModelConfig, of_layer: Callable[[int], Iterable[Fragment]]) -> None:
        """``of_layer``: what is stored of a layer (global index); must depend on its number in names only."""
        self._model, self._of_layer = model, of_layer
        self._first: dict[bool, tuple[int, tuple[Fragment, ...]]] = {}

    def __call__(self, layer: int) -> tuple[Fragment, ...]:
        """Fragments of one layer."""
        kind = has_experts(self._model, layer)
        if kind not in self._first:
            self._first[kind] = (layer, tuple(self._of_layer(layer)))
        first, fragments = self._first[kind]
        if layer == first:
            return fragments
        return tuple(
            Fragment(
                renumbered(f.tensor, first, layer), f.start, f.stop, renumbered(f.buffer, first, layer), f.offset, f.strides
            )
            for f in fragments
        )


def _rows(tensor: LogicalTensor, first: int, last: int, buffer: str, at_row: int) -> Fragment:
    """Rows ``[first, last)`` of a tensor, stored contiguously from row ``at_row`` of the buffer."""
    rest = tensor.shape[1:]
    width = rest[0] if rest else 1
    strides = (width, 1)[: len(tensor.shape)] if rest else (1,)
    return Fragment(tensor.name, (first, *(0 for _ in rest)), (last, *rest), buffer, at_row * width, strides)


def _columns(tensor: LogicalTensor, place: Slice, buffer: str) -> Fragment:
    rows, columns = tensor.shape
    first, last = place.of(columns)
    return Fragment(tensor.name, (0, first), (rows, last), buffer, 0, (last - first, 1))


def _stacked_heads(parts: list[LogicalTensor], buffer: str, model: ModelConfig, place: Slice) -> Iterator[Fragment]:
    key_heads, at = model.num_key_value_heads, 0
    key_place = place
    if place.size > key_heads:
        replicas = place.size // key_heads
        key_place = Slice(place.index // replicas, key_heads)
    for part, owner in zip(parts, (place, key_place, key_place), strict=True):
        first, last = owner.of(part.shape[0])
        yield _rows(part, first, last, buffer, at)
        at += last - first


def _grouped_heads(parts: list[LogicalTensor], buffer: str, model: ModelConfig, place: Slice) -> Iterator[Fragment]:
    """Megatron-Core's own order, where ranks outnumber groups: a group's rows are cut evenly, even inside a head."""
    head, groups = model.kv_channels, model.num_key_value_heads
    heights = (model.num_attention_heads // groups * head, head, head)
    first, last = place.of(sum(heights) * groups)
    at = 0
    for group in range(groups):
        for part, height in zip(parts, heights, strict=True):
            low, high = max(first, at), min(last, at + height)
            if low < high:
                shift = group * height - at
                yield _rows(part, low + shift, high + shift, buffer, low - first)
            at += height
