"""Strided runs between two buffers: made from overlapping fragments, merged where adjacent, cut to a size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from operator import attrgetter

from megatron_rl.resharding.boxes import Box
from megatron_rl.resharding.spec import Fragment


@dataclass(frozen=True, slots=True)
class Piece:
    """A strided block that moves from one parameter to another; offsets and strides count elements.

    Example: columns 32..63 of a ``[16, 64]`` source into a ``[16, 32]`` destination:
    ``Piece((16, 32), "linear_fc2", 32, (64, 1), "down_proj", 0, (32, 1))``.
    """

    shape: tuple[int, ...]
    source: str
    source_offset: int
    source_strides: tuple[int, ...]
    destination: str
    destination_offset: int
    destination_strides: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements moved."""
        return prod(self.shape)


in_order = attrgetter("source", "source_offset", "destination", "destination_offset")
"""Sort key of the order in which pieces are merged and travel."""


def make_piece(box: Box, source: Fragment, destination: Fragment) -> Piece:
    """The piece that carries ``box``, which lies inside both fragments."""
    start, stop = box
    return _simplified(
        tuple(b - a for a, b in zip(start, stop, strict=True)),
        source.buffer,
        _offset(source, start),
        source.strides,
        destination.buffer,
        _offset(destination, start),
        destination.strides,
    )


def merge_adjacent(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Join pieces that follow each other, along any dim, in both buffers; order: source buffer, then offset."""
    merged: list[Piece] = []
    for piece in sorted(pieces, key=in_order):
        joined = _join(merged[-1], piece) if merged else None
        if joined is None:
            merged.append(piece)
        else:
            merged[-1] = joined
    return tuple(merged)


def split_head(piece: Piece, max_elements: int) -> list[Piece]:
    """Cut a piece of more than ``max_elements``, in order, so that the first part has at most that many.

    The cut is between rows of the outermost dim, or inside the first row where not even one fits.
    """
    rows = piece.shape[0]
    taken = max_elements // (piece.num_elements // rows)
    if taken >= 1:
        return [_rows(piece, 0, taken), _rows(piece, taken, rows)]
    return [*split_head(_rows(piece, 0, 1), max_elements), _rows(piece, 1, rows)]


def _rows(piece: Piece, first: int, last: int) -> Piece:
    return _simplified(
        (last - first, *piece.shape[1:]),
        piece.source,
        piece.source_offset + first * piece.source_strides[0],
        piece.source_strides,
        piece.destination,
        piece.destination_offset + first * piece.destination_strides[0],
        piece.destination_strides,
    )


def _offset(fragment: Fragment, point: tuple[int, ...]) -> int:
    offset = fragment.offset
    if point == fragment.start:
        return offset
    for at, low, stride in zip(point, fragment.start, fragment.strides, strict=True):
        offset += (at - low) * stride
    return offset


def _simplified(
    shape: tuple[int, ...],
    source: str,
    source_offset: int,
    source_strides: tuple[int, ...],
    destination: str,
    destination_offset: int,
    destination_strides: tuple[int, ...],
) -> Piece:
    """Drop dims of extent 1 and fuse dims that are contiguous on both sides."""
    dims: list[tuple[int, int, int]] = []
    for extent, s, d in zip(shape, source_strides, destination_strides, strict=True):
        if extent == 1:
            continue
        if dims and dims[-1][1] == s * extent and dims[-1][2] == d * extent:
            dims[-1] = (dims[-1][0] * extent, s, d)
        else:
            dims.append((extent, s, d))
    extents, sources, destinations = zip(*dims, strict=True) if dims else ((1,), (1,), (1,))
    return Piece(extents, source, source_offset, sources, destination, destination_offset, destinations)


def _join(a: Piece, b: Piece) -> Piece | None:
    if a.source != b.source or a.destination != b.destination or len(a.shape) != len(b.shape):
        return None
    if a.source_strides != b.source_strides or a.destination_strides != b.destination_strides:
        return None
    source_step = b.source_offset - a.source_offset
    destination_step = b.destination_offset - a.destination_offset
    for dim, extent in enumerate(a.shape):
        same_face = a.shape[:dim] == b.shape[:dim] and a.shape[dim + 1 :] == b.shape[dim + 1 :]
        if (
            same_face
            and source_step == extent * a.source_strides[dim]
            and destination_step == extent * a.destination_strides[dim]
        ):
            shape = (*a.shape[:dim], extent + b.shape[dim], *a.shape[dim + 1 :])
            return _simplified(
                shape,
                a.source,
                a.source_offset,
                a.source_strides,
                a.destination,
                a.destination_offset,
                a.destination_strides,
            )
    return None
