"""Strided copies between many tensors in one launch, for weight synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.dispatch import runs_on_triton, unsupported
from kernels.repack.qkv import qkv_views
from kernels.repack.reference import repack_reference

__all__ = ["Repack", "prepare_repack", "qkv_views", "repack_reference"]

COPIED = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)


class Repack(Protocol):
    """A prepared batch of copies."""

    def run(self) -> None:
        """Copy the current values of all sources."""


@dataclass(frozen=True, slots=True)
class _OneByOne:
    sources: list[Tensor]
    destinations: list[Tensor]

    def run(self) -> None:
        repack_reference(self.sources, self.destinations)


def prepare_repack(sources: Sequence[Tensor], destinations: Sequence[Tensor]) -> Repack:
    """Prepare ``destination.copy_(source)`` for all pairs; strided views on either side, dtype converted on the way.

    On CUDA the answer holds a table of addresses: prepare again where a tensor's storage has moved. Pairs must not
    overlap. Runs of adjacent elements on 16-byte bounds move as vectors.

    Args:
        sources: views of one dtype, any strides with at most three dims left around the contiguous part.
        destinations: views of another or the same dtype, of the sources' shapes, each element written once.

    Raises ValueError on CUDA for several dtypes on one side, unequal shapes, or more dims.
    """
    if not sources or not runs_on_triton("repack", COPIED, *sources, *destinations):
        return _OneByOne(list(sources), list(destinations))
    for side in (sources, destinations):
        if len({tensor.dtype for tensor in side}) > 1:
            raise unsupported("repack", "several dtypes on one side; prepare one batch for each")
    if any(s.shape != d.shape for s, d in zip(sources, destinations, strict=True)):
        raise unsupported("repack", "unequal shapes")
    from kernels.repack.triton import RepackTable

    return RepackTable(sources, destinations)
