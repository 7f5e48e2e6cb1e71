"""Many strided copies in one launch: each program looks its piece up in a table of addresses and strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.repack.pieces import RUN_BLOCKS, CopyPiece, copy_piece

TYPES = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int64: tl.int64,
    torch.int32: tl.int32,
    torch.int16: tl.int16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
}


@triton.jit
def _copy_pieces(
    table_P12,
    tiles_G3,
    SOURCE: tl.constexpr,
    DESTINATION: tl.constexpr,
    RUNS: tl.constexpr,
    RUN: tl.constexpr,
    VECTOR: tl.constexpr,
):
    tile = tiles_G3 + tl.program_id(0).to(tl.int64) * 3
    piece = table_P12 + tl.load(tile).to(tl.int64) * 12
    source = tl.load(piece).to(tl.pointer_type(SOURCE))
    destination = tl.load(piece + 1).to(tl.pointer_type(DESTINATION))
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
        # Promises the table's maker has checked; without them each thread moves one element at a time.
        source, destination = tl.multiple_of(source, 16), tl.multiple_of(destination, 16)
        read, write = tl.multiple_of(read, VECTOR), tl.multiple_of(write, VECTOR)
        length, first = tl.multiple_of(length, VECTOR), tl.multiple_of(first, VECTOR)
    at = first + tl.arange(0, RUN)
    inside = (runs < extent0 * extent1 * extent2)[:, None] & (at < length)[None, :]
    values = tl.load(source + (read[:, None] + at[None, :]), mask=inside)
    tl.store(destination + (write[:, None] + at[None, :]), values.to(DESTINATION), mask=inside)


@dataclass(frozen=True, slots=True)
class Launch:
    """Pieces that share a block shape and alignment."""

    table: Tensor
    """i64, a row for each piece: ``CopyPiece.row()``, then what the kernel needs besides."""
    tiles_G3: Tensor
    """i32, ``(piece, first run, first element of the run)`` of each program."""
    run_block: int
    aligned: bool


class RepackTable:
    """A batch of copies, prepared once and run many times; see :func:`kernels.repack.prepare_repack`."""

    def __init__(self, sources: Sequence[Tensor], destinations: Sequence[Tensor]) -> None:
        pairs = [pair for pair in zip(sources, destinations, strict=True) if pair[0].numel() > 0]
        self._kept = pairs  # the table holds bare addresses
        self._launches: list[Launch] = []
        if not pairs:
            return
        self._source, self._destination = pairs[0][0].dtype, pairs[0][1].dtype
        self._launches = launches([(copy_piece(*pair), ()) for pair in pairs], pairs[0][0].device)

    def run(self) -> None:
        """Copy the current values; one launch per block shape and alignment, usually one or two in all."""
        widest = max((self._source.itemsize, self._destination.itemsize)) if self._launches else 1
        for launch in self._launches:
            _copy_pieces[(launch.tiles_G3.shape[0],)](
                launch.table,
                launch.tiles_G3,
                SOURCE=TYPES[self._source],
                DESTINATION=TYPES[self._destination],
                RUNS=RUN_BLOCKS[0] // launch.run_block,
                RUN=launch.run_block,
                VECTOR=16 // widest if launch.aligned else 1,
            )


Row = tuple[CopyPiece, tuple[int, ...]]
"""A piece and the further columns of its row."""


def launches(rows: Sequence[Row], device: torch.device) -> list[Launch]:
    """Tables of programs, one for each block shape and alignment among the pieces."""
    ordered = sorted(rows, key=_kind)
    return [_launch(list(group), run_block, aligned, device) for (run_block, aligned), group in groupby(ordered, key=_kind)]


def _kind(row: Row) -> tuple[int, bool]:
    return row[0].run_block, row[0].aligned


def _launch(rows: list[Row], run_block: int, aligned: bool, device: torch.device) -> Launch:
    pieces = [piece for piece, _ in rows]
    runs_block = RUN_BLOCKS[0] // run_block
    across_P = torch.tensor([-(-piece.run // run_block) for piece in pieces])
    down_P = torch.tensor([-(-piece.num_runs // runs_block) for piece in pieces])
    tiles_P = across_P * down_P
    piece_G = torch.repeat_interleave(torch.arange(len(pieces)), tiles_P)
    within_G = torch.arange(piece_G.numel()) - (tiles_P.cumsum(0) - tiles_P)[piece_G]
    first_run_G = within_G // across_P[piece_G] * runs_block
    first_element_G = within_G % across_P[piece_G] * run_block
    tiles_G3 = torch.stack((piece_G, first_run_G, first_element_G), dim=1).to(torch.int32)
    table = torch.tensor([[*piece.row(), *further] for piece, further in rows], dtype=torch.int64)
    return Launch(table.to(device), tiles_G3.to(device), run_block, aligned)
