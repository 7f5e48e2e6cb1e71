"""A plan's pieces as strided views of parameters, and batches of copies between such views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from megatron_rl.ops import prepare_strided_copies
from megatron_rl.resharding.pieces import Piece


class Batch(Protocol):
    """Copies prepared once and run for every transfer."""

    def run(self) -> None:
        """Copy the current values."""


class Copies:
    """Pairs of equally shaped views, copied together in as few launches as the device allows."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Prepare ``(source, destination)`` pairs; their storage must stay where it is."""
        pairs = [(_as_bits(s), _as_bits(d)) if s.dtype == d.dtype else (s, d) for s, d in pairs]
        on_gpu = [(s, d) for s, d in pairs if _on_one_gpu(s, d)]
        rest = [(s, d) for s, d in pairs if not _on_one_gpu(s, d)]
        self._sources, self._destinations = [s for s, _ in rest], [d for _, d in rest]
        # One launch, and faster than torch's batched copy also where nothing is strided (benchmarks/reshard.py).
        self._on_gpu = prepare_strided_copies([s for s, _ in on_gpu], [d for _, d in on_gpu]) if on_gpu else None

    def run(self) -> None:
        """Copy the current values."""
        if self._sources:
            torch._foreach_copy_(self._destinations, self._sources)
        if self._on_gpu is not None:
            self._on_gpu.run()


def source_view(tensors: Mapping[str, Tensor], piece: Piece) -> Tensor:
    """What a piece reads. Raises ValueError naming the parameter where it is absent, strided or too small."""
    return _view(tensors, piece.source, piece.shape, piece.source_strides, piece.source_offset)


def destination_view(tensors: Mapping[str, Tensor], piece: Piece) -> Tensor:
    """What a piece writes. Raises ValueError naming the parameter where it is absent, strided or too small."""
    return _view(tensors, piece.destination, piece.shape, piece.destination_strides, piece.destination_offset)


def _view(tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    if name not in tensors:
        raise ValueError(f"the plan needs parameter {name!r}, which this rank does not have")
    tensor = tensors[name].detach()
    last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if not tensor.is_contiguous() or last >= tensor.numel():
        raise ValueError(f"parameter {name!r} {tuple(tensor.shape)} is not contiguous or ends before element {last}")
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _on_one_gpu(source: Tensor, destination: Tensor) -> bool:
    return source.is_cuda and source.device == destination.device


def _as_bits(tensor: Tensor) -> Tensor:
    """8-bit floats as bytes, which everything can copy."""
    return tensor.view(torch.uint8) if tensor.is_floating_point() and tensor.element_size() == 1 else tensor
