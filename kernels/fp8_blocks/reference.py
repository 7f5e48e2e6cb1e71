"""Specification of block-scaled FP8: one f32 scale for each 128 x 128 block of a weight."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128
FP8 = torch.float8_e4m3fn
LARGEST = 448.0
"""Of e4m3."""
SMALLEST_AMAX = 1e-4
"""A block of zeros has a scale too."""


def scales_from_amax(amax: Tensor) -> Tensor:
    """Scale of a block from its largest absolute value, f32: ``max(amax, 1e-4) / 448``."""
    return amax.clamp(SMALLEST_AMAX) / LARGEST


def block_amax_reference(weight_NK: Tensor) -> Tensor:
    """Largest absolute value of each block, f32 ``[ceil(N / 128), ceil(K / 128)]``."""
    rows, columns = weight_NK.shape
    padded = torch.nn.functional.pad(weight_NK.abs().float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    return padded.view(padded.shape[0] // BLOCK, BLOCK, -1, BLOCK).amax(dim=(1, 3))


def quantise_reference(source: Tensor, destination: Tensor, inverse_scales: Tensor, first: int, width: int) -> None:
    """Write ``source * inverse_scale`` of each element's block into an FP8 view of the same shape.

    Args:
        source: strided view of a contiguous weight of row length ``width``, any dims.
        destination: FP8 view of the same shape.
        inverse_scales: f32, one for each block of the weight.
        first: where in the weight the view's first element lies, in elements.
        width: of the weight's rows, elements.
    """
    place = torch.full((1,) * source.dim(), first, dtype=torch.int64, device=source.device)
    for dim, (extent, stride) in enumerate(zip(source.shape, source.stride(), strict=True)):
        steps = torch.arange(extent, device=source.device) * stride
        place = place + steps.view([-1 if d == dim else 1 for d in range(source.dim())])
    block = (place // width // BLOCK, place % width // BLOCK)
    destination.copy_((source * inverse_scales[block]).to(FP8))
