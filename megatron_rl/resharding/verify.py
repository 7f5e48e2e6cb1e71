"""Proof that a transfer was right: scatter known values, count writes, compare checksums of what ranks hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.parallel.gather import gather_objects
from megatron_rl.resharding.boxes import Box, volume
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.spec import Fragment, LogicalTensor, RankFragments

_Checksums = dict[tuple[str, Box], int]
"""(tensor, box) -> checksum."""

_BLOCK_ELEMENTS = 1 << 22
"""Checksums take 8-byte integers per element; this many at a time."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fragment_view(fragment: Fragment, buffer: Tensor) -> Tensor:
    """The fragment's box as a strided view of the contiguous parameter that stores it."""
    return buffer.detach().as_strided(fragment.shape, fragment.strides, buffer.storage_offset() + fragment.offset)


def allocate_buffers(fragments: RankFragments, dtype: torch.dtype, fill: float) -> dict[str, Tensor]:
    """Flat tensors just long enough for every fragment, by buffer name, filled with one value."""
    sizes: dict[str, int] = defaultdict(int)
    for f in fragments:
        last = f.offset + sum((n - 1) * stride for n, stride in zip(f.shape, f.strides, strict=True))
        sizes[f.buffer] = max(sizes[f.buffer], last + 1)
    return {name: torch.full((size,), fill, dtype=dtype) for name, size in sizes.items()}


def allocate_matrices(fragments: RankFragments, dtype: torch.dtype) -> dict[str, Tensor]:
    """Zeros in the shapes of the parameters that store the fragments, boxes of matrices."""
    widths = {f.buffer: f.strides[0] for f in fragments}
    rows = dict.fromkeys(widths, 0)
    for f in fragments:
        rows[f.buffer] = max(rows[f.buffer], f.offset // widths[f.buffer] + f.shape[0])
    return {name: torch.zeros(rows[name], width, dtype=dtype) for name, width in widths.items()}


def scatter_logical(fragments: RankFragments, tensors: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Write whole checkpoint tensors into the local parameters of one rank."""
    for f in fragments:
        box = tuple(slice(a, b) for a, b in zip(f.start, f.stop, strict=True))
        fragment_view(f, buffers[f.buffer]).copy_(tensors[f.tensor][box])


def count_writes(plan: ReshardPlan, rank: int, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How often the plan writes each element of each destination parameter of ``rank``: i64 counts, flat."""
    counts = {name: torch.zeros(buffer.numel(), dtype=torch.int64) for name, buffer in buffers.items()}
    for piece in plan.pieces_to(rank):
        counts[piece.destination].as_strided(piece.shape, piece.destination_strides, piece.destination_offset).add_(1)
    return counts


def verify_transfer(
    tensors: Sequence[LogicalTensor],
    source_fragments: RankFragments,
    sources: Mapping[str, Tensor],
    destination_fragments: RankFragments,
    destinations: Mapping[str, Tensor],
    group: dist.ProcessGroup | None,
) -> None:
    """Compare, over all ranks, checksums of every tensor as the sources and as the destinations hold it.

    A collective over ``group``. A checksum is a sum over elements of bits times a hash of the element's place in the
    tensor, so order matters and the cut does not. Raises ValueError naming the first tensor that differs, between
    sides or between replicas of a side. Dtypes are compared after the cast to the destination's.
    """
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    dtypes = _gather(next((tensor.dtype for tensor in destinations.values()), None), group)
    target = next(dtype for dtype in dtypes if dtype is not None)
    mine = (
        _checksums(source_fragments, sources, shapes, target),
        _checksums(destination_fragments, destinations, shapes, target),
    )
    gathered = _gather(mine, group)
    held = _total("source", (sums for sums, _ in gathered), shapes)
    arrived = _total("destination", (sums for _, sums in gathered), shapes)
    for name in shapes:
        if held[name] != arrived[name]:
            raise ValueError(f"after the transfer {name!r} differs from what the source ranks hold")


def _gather[T](value: T, group: dist.ProcessGroup | None) -> list[T]:
    return [value] if group is None else list(gather_objects(value, group).values())


def _checksums(
    fragments: RankFragments, buffers: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype
) -> _Checksums:
    sums: _Checksums = {}
    for f in fragments:
        view, total = fragment_view(f, buffers[f.buffer]), 0
        rows = max(1, _BLOCK_ELEMENTS * view.shape[0] // view.numel())
        for first in range(0, view.shape[0], rows):
            block = view[first : first + rows].to(dtype).contiguous()
            total += _checksum(block, (f.start[0] + first, *f.start[1:]), shapes[f.tensor])
        sums[f.tensor, (f.start, f.stop)] = total % 2**64
    return sums


def _checksum(values: Tensor, start: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Sum modulo 2^64 of bits * (odd multiplier of the flat index in the whole tensor)."""
    bits = values.view(_INTEGERS[values.element_size()]).to(torch.int64)
    index = torch.zeros((1,) * len(shape), dtype=torch.int64, device=values.device)
    for dim, (low, length, extent) in enumerate(zip(start, values.shape, shape, strict=True)):
        places = torch.arange(low, low + length, device=values.device)
        index = index * extent + places.view([-1 if d == dim else 1 for d in range(len(shape))])
    weights = (index * 2654435761 + 40503) % 2147483647 * 2 + 1
    return int((bits * weights).sum())


def _total(side: str, answers: Iterable[_Checksums], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """One checksum per tensor from the checksums of its boxes; replicas of a box must agree."""
    boxes: dict[str, dict[Box, int]] = defaultdict(dict)
    for sums in answers:
        for (name, box), value in sums.items():
            if boxes[name].setdefault(box, value) != value:
                raise ValueError(f"{side} replicas of {name!r} {box} differ")
    totals = {}
    for name, shape in shapes.items():
        covered = sum(map(volume, boxes[name]))
        whole = volume((tuple(0 for _ in shape), shape))
        assert covered == whole, f"{side} boxes of {name} overlap or leave gaps: {covered} of {whole} elements"
        totals[name] = sum(boxes[name].values()) % 2**64
    return totals
