"""Scales of all blocks of many weights in one launch, and strided copies that quantise on the way in another.

Shape suffixes: M weights, G programs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.fp8_blocks import BlockScaled
from kernels.fp8_blocks.reference import BLOCK, scales_from_amax
from kernels.repack.pieces import RUN_BLOCKS, copy_piece
from kernels.repack.triton import TYPES, Launch, launches


@triton.jit
def _block_amax(table_M4, tiles_G3, SOURCE: tl.constexpr, SIDE: tl.constexpr):
    tile = tiles_G3 + tl.program_id(0).to(tl.int64) * 3
    weight = table_M4 + tl.load(tile).to(tl.int64) * 4
    source = tl.load(weight).to(tl.pointer_type(SOURCE))
    amax = tl.load(weight + 1).to(tl.pointer_type(tl.float32))
    height, width = tl.load(weight + 2), tl.load(weight + 3)
    block_row, block_column = tl.load(tile + 1).to(tl.int64), tl.load(tile + 2).to(tl.int64)
    rows, columns = block_row * SIDE + tl.arange(0, SIDE), block_column * SIDE + tl.arange(0, SIDE)
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    values = tl.load(source + rows[:, None] * width + columns[None, :], mask=inside, other=0.0)
    largest = tl.max(tl.max(tl.abs(values.to(tl.float32)), axis=1), axis=0)
    tl.store(amax + block_row * ((width + SIDE - 1) // SIDE) + block_column, largest)


@triton.jit
def _quantise_pieces(
    table_P15,
    tiles_G3,
    SOURCE: tl.constexpr,
    RUNS: tl.constexpr,
    RUN: tl.constexpr,
    VECTOR: tl.constexpr,
    SIDE: tl.constexpr,
):
    tile = tiles_G3 + tl.program_id(0).to(tl.int64) * 3
    piece = table_P15 + tl.load(tile).to(tl.int64) * 15
    source = tl.load(piece).to(tl.pointer_type(SOURCE))
    destination = tl.load(piece + 1).to(tl.pointer_type(tl.float8e4nv))
    length = tl.load(piece + 2)
    extent0, extent1, extent2 = tl.load(piece + 3), tl.load(piece + 4), tl.load(piece + 5)
    runs = tl.load(tile + 1).to(tl.int64) + tl.arange(0, RUNS)
    inner = runs % extent2
    middle = (runs // extent2) % extent1
    outer = runs // (extent2 * extent1)
    read = outer * tl.load(piece + 6) + middle * tl.load(piece + 7) + inner * tl.load(piece + 8)
    write = outer * tl.load(piece + 9) + middle * tl.load(piece + 10) + inner * tl.load(piece + 11)
    first = tl.load(tile + 2).to(tl.int64)
    if VECTOR > 1:
        source, destination = tl.multiple_of(source, 16), tl.multiple_of(destination, 16)
        read, write = tl.multiple_of(read, VECTOR), tl.multiple_of(write, VECTOR)
        length, first = tl.multiple_of(length, VECTOR), tl.multiple_of(first, VECTOR)
    at = first + tl.arange(0, RUN)
    inside = (runs < extent0 * extent1 * extent2)[:, None] & (at < length)[None, :]
    values = tl.load(source + (read[:, None] + at[None, :]), mask=inside, other=0.0).to(tl.float32)
    # Where in its weight each element lies; 32 bits are enough for one weight, and much faster to divide.
    width = tl.load(piece + 13).to(tl.int32)
    place = (tl.load(piece + 12) + read[:, None] + at[None, :]).to(tl.int32)
    row = place // width
    block = (row // SIDE) * ((width + SIDE - 1) // SIDE) + (place - row * width) // SIDE
    inverse = tl.load(piece + 14).to(tl.pointer_type(tl.float32))
    scaled = values * tl.load(inverse + block, mask=inside, other=0.0)
    tl.store(destination + (write[:, None] + at[None, :]), scaled.to(tl.float8e4nv), mask=inside)


class ScalesTable:
    """Renews the scales of many weights; see :func:`kernels.fp8_blocks.prepare_block_scales`."""

    def __init__(self, weights: Sequence[BlockScaled]) -> None:
        device = weights[0].weight_NK.device
        self._weights, self._source = list(weights), weights[0].weight_NK.dtype
        counts = [weight.scales.numel() for weight in weights]
        self._amax = torch.empty(sum(counts), dtype=torch.float32, device=device)
        amax_M = torch.split(self._amax, counts)
        rows = [[w.weight_NK.data_ptr(), amax.data_ptr(), *w.weight_NK.shape] for w, amax in zip(weights, amax_M, strict=True)]
        self._table_M4 = torch.tensor(rows, dtype=torch.int64).to(device)
        self._tiles_G3 = torch.cat([_blocks(number, weight.scales) for number, weight in enumerate(weights)]).to(device)
        self._scales = [weight.scales.view(-1) for weight in weights]
        self._inverse = [weight.inverse_scales.view(-1) for weight in weights]
        self._counts = counts

    def run(self) -> None:
        """Use the current weights."""
        _block_amax[(self._tiles_G3.shape[0],)](self._table_M4, self._tiles_G3, SOURCE=TYPES[self._source], SIDE=BLOCK)
        scales = scales_from_amax(self._amax)
        torch._foreach_copy_(self._scales, list(torch.split(scales, self._counts)))
        torch._foreach_copy_(self._inverse, list(torch.split(1.0 / scales, self._counts)))


class QuantiseTable:
    """Strided copies that quantise, prepared once; see :func:`kernels.fp8_blocks.prepare_quantise`."""

    def __init__(self, sources: Sequence[Tensor], destinations: Sequence[Tensor], weights: Sequence[BlockScaled]) -> None:
        self._kept = list(zip(sources, destinations, weights, strict=True))  # the table holds bare addresses
        self._source = sources[0].dtype
        rows = []
        for source, destination, weight in self._kept:
            first = (source.data_ptr() - weight.weight_NK.data_ptr()) // source.element_size()
            rows.append((copy_piece(source, destination), (first, weight.weight_NK.shape[1], weight.inverse_scales.data_ptr())))
        self._launches: list[Launch] = launches(rows, sources[0].device)

    def run(self) -> None:
        """Quantise the current values; one launch per block shape and alignment."""
        for launch in self._launches:
            _quantise_pieces[(launch.tiles_G3.shape[0],)](
                launch.table,
                launch.tiles_G3,
                SOURCE=TYPES[self._source],
                RUNS=RUN_BLOCKS[0] // launch.run_block,
                RUN=launch.run_block,
                VECTOR=16 // self._source.itemsize if launch.aligned else 1,
                SIDE=BLOCK,
            )


def _blocks(number: int, scales: Tensor) -> Tensor:
    """``[blocks, 3]`` i32: number of the weight, row and column of the block."""
    rows, columns = torch.meshgrid(*(torch.arange(extent) for extent in scales.shape), indexing="ij")
    return torch.stack((torch.full_like(rows, number), rows, columns), dim=-1).view(-1, 3).to(torch.int32)
