"""Weights to block-scaled FP8 on the way to the rollout engine.

The arithmetic is that of vLLM's online ``fp8_per_block`` (DeepSeek-V3, arXiv:2412.19437, section 3.3.2): e4m3 values, one f32
scale for each 128 x 128 block, ``scale = max|block| / 448``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.dispatch import runs_on_triton, unsupported
from kernels.fp8_blocks.reference import BLOCK, FP8, block_amax_reference, quantise_reference, scales_from_amax
from kernels.repack import Repack

__all__ = ["BLOCK", "FP8", "BlockScaled", "prepare_block_scales", "prepare_quantise"]

WEIGHTS = (torch.bfloat16, torch.float16, torch.float32)
_LARGEST_WEIGHT = 2**31
"""Elements; the kernel finds an element's block in 32 bits."""


@dataclass(frozen=True, slots=True)
class BlockScaled:
    """A weight and the memory of its scales."""

    weight_NK: Tensor
    scales: Tensor
    """f32 ``[ceil(N / 128), ceil(K / 128)]``, contiguous."""
    inverse_scales: Tensor
    """Of the same shape."""


@dataclass(frozen=True, slots=True)
class _ScalesOneByOne:
    weights: list[BlockScaled]

    def run(self) -> None:
        for each in self.weights:
            each.scales.copy_(scales_from_amax(block_amax_reference(each.weight_NK)))
            torch.div(1.0, each.scales, out=each.inverse_scales)


@dataclass(frozen=True, slots=True)
class _QuantiseOneByOne:
    sources: list[Tensor]
    destinations: list[Tensor]
    weights: list[BlockScaled]

    def run(self) -> None:
        for source, destination, weight in zip(self.sources, self.destinations, self.weights, strict=True):
            first = int(source.storage_offset() - weight.weight_NK.storage_offset())
            quantise_reference(source, destination, weight.inverse_scales, first, weight.weight_NK.shape[1])


def prepare_block_scales(weights: Sequence[BlockScaled]) -> Repack:
    """Prepare the renewal of all scales from the current weights; on CUDA one launch and a few small ones.

    On CUDA the answer holds addresses: prepare again where a weight has moved. Weights are contiguous and of one dtype.
    """
    if not weights or not runs_on_triton("fp8_blocks", WEIGHTS, *(w.weight_NK for w in weights)):
        return _ScalesOneByOne(list(weights))
    from kernels.fp8_blocks.triton import ScalesTable

    return ScalesTable(weights)


def prepare_quantise(sources: Sequence[Tensor], destinations: Sequence[Tensor], weights: Sequence[BlockScaled]) -> Repack:
    """Prepare ``destination = FP8(source / scale of its block)`` for all pairs, one launch on CUDA.

    Args:
        sources: strided views of weights, as in ``prepare_repack``.
        destinations: FP8 views of the sources' shapes, each element written once.
        weights: what each source is a view of.

    Raises ValueError on CUDA for a weight of 2^31 elements or more, or views with more dims than ``prepare_repack`` takes.
    """
    if not sources or not runs_on_triton("fp8_blocks", WEIGHTS, *sources):
        return _QuantiseOneByOne(list(sources), list(destinations), list(weights))
    if any(weight.weight_NK.numel() >= _LARGEST_WEIGHT for weight in weights):
        raise unsupported("fp8_blocks", f"a weight of {_LARGEST_WEIGHT} elements or more")
    from kernels.fp8_blocks.triton import QuantiseTable

    return QuantiseTable(sources, destinations, weights)
