"""Geometry of a strided copy, reduced to runs of adjacent elements under at most three outer dims."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.dispatch import unsupported

NUM_OUTER_DIMS = 3
RUN_BLOCKS = (4096, 1024, 256, 64)
"""Elements of one run a program handles; it takes ``RUN_BLOCKS[0] / block`` runs."""
MAX_PADDING = 1.25
"""The largest block is taken that leaves at most a fifth of its lanes idle."""
VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class CopyPiece:
    """One copy; strides count elements.

    Example: the query rows of a ``[4, 6, 128, 512]`` QKV weight, 4 of 6 per group, into ``[16 * 128, 512]``:
    ``run=4 * 128 * 512``, ``outer=(1, 1, 4)``, strides 6 and 4 heads apart.
    """

    run: int
    """Elements adjacent on both sides."""
    outer: tuple[int, int, int]
    """Extents around the run, outermost first."""
    source_strides: tuple[int, int, int]
    destination_strides: tuple[int, int, int]
    source_address: int
    destination_address: int
    aligned: bool
    """Whether every run starts and ends on 16-byte bounds, on both sides."""

    @property
    def num_runs(self) -> int:
        """Runs of the piece."""
        return self.outer[0] * self.outer[1] * self.outer[2]

    @property
    def run_block(self) -> int:
        """Which of ``RUN_BLOCKS`` suits the run."""
        for block in RUN_BLOCKS:
            if -(-self.run // block) * block <= MAX_PADDING * self.run:
                return block
        return RUN_BLOCKS[-1]

    def row(self) -> list[int]:
        """The piece as a row of the descriptor table."""
        return [
            self.source_address,
            self.destination_address,
            self.run,
            *self.outer,
            *self.source_strides,
            *self.destination_strides,
        ]


def copy_piece(source: Tensor, destination: Tensor) -> CopyPiece:
    """Geometry of ``destination.copy_(source)``; ValueError where more than three outer dims remain after fusing."""
    assert source.shape == destination.shape
    dims = _fused(source, destination)
    run = 1
    if dims and dims[-1][1:] == (1, 1):
        run = dims.pop()[0]
    if len(dims) > NUM_OUTER_DIMS:
        raise unsupported("repack", f"a copy of {len(dims)} outer dims, at most {NUM_OUTER_DIMS}")
    padded = [(1, 0, 0)] * (NUM_OUTER_DIMS - len(dims)) + dims
    extents, source_strides, destination_strides = zip(*padded, strict=True)
    sides = ((source, source_strides), (destination, destination_strides))
    return CopyPiece(
        run,
        extents,
        source_strides,
        destination_strides,
        source.data_ptr(),
        destination.data_ptr(),
        all(_is_aligned(tensor, run, strides) for tensor, strides in sides),
    )


def _fused(source: Tensor, destination: Tensor) -> list[tuple[int, int, int]]:
    """``(extent, source stride, destination stride)`` without extents of 1, contiguous neighbours fused."""
    dims: list[tuple[int, int, int]] = []
    for extent, s, d in zip(source.shape, source.stride(), destination.stride(), strict=True):
        if extent == 1:
            continue
        if dims and dims[-1][1] == s * extent and dims[-1][2] == d * extent:
            dims[-1] = (dims[-1][0] * extent, s, d)
        else:
            dims.append((extent, s, d))
    return dims


def _is_aligned(tensor: Tensor, run: int, strides: tuple[int, ...]) -> bool:
    size = tensor.element_size()
    return all(number % VECTOR_BYTES == 0 for number in (tensor.data_ptr(), run * size, *(s * size for s in strides)))
