"""Whitening in two reads of the data: moments of each block, joined exactly, then the shift and scale."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _block_moments(x_N, mask_N, moments_P3, num_cells, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    at = program * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_cells
    counted = inside & (tl.load(mask_N + at, mask=inside, other=0) != 0)
    x = tl.where(counted, tl.load(x_N + at, mask=inside, other=0.0).to(tl.float64), 0.0)
    count = tl.sum(counted.to(tl.float64), axis=0)
    mean = tl.sum(x, axis=0) / tl.maximum(count, 1.0)
    distance = tl.where(counted, x - mean, 0.0)
    tl.store(moments_P3 + program * 3, count)
    tl.store(moments_P3 + program * 3 + 1, mean)
    tl.store(moments_P3 + program * 3 + 2, tl.sum(distance * distance, axis=0))


@triton.jit
def _shift_and_scale(x_N, mask_N, moments_3, output_N, num_cells, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_cells
    counted = inside & (tl.load(mask_N + at, mask=inside, other=0) != 0)
    distance = tl.load(x_N + at, mask=inside, other=0.0).to(tl.float64) - tl.load(moments_3)
    floor = tl.load(moments_3 + 1)
    whitened = tl.where(counted & (tl.abs(distance) > floor), distance * tl.load(moments_3 + 2), 0.0)
    # A NaN is no smaller than the floor, nor larger: keep it.
    whitened = tl.where(counted & (distance != distance), distance, whitened)
    tl.store(output_N + at, whitened.to(tl.float32), mask=inside)


def masked_whiten_triton(x: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """See :func:`kernels.masked_whiten.masked_whiten`."""
    cells, flags = x.contiguous(), mask.contiguous().view(torch.uint8)
    num_cells = cells.numel()
    output = torch.empty_like(cells, dtype=torch.float32)
    if num_cells == 0:
        return output
    num_programs = triton.cdiv(num_cells, BLOCK)
    moments_P3 = torch.empty(num_programs, 3, dtype=torch.float64, device=x.device)
    _block_moments[(num_programs,)](cells, flags, moments_P3, num_cells, BLOCK=BLOCK)
    _shift_and_scale[(num_programs,)](cells, flags, _joined(moments_P3, eps), output, num_cells, BLOCK=BLOCK)
    return output


def _joined(moments_P3: Tensor, eps: float) -> Tensor:
    """Mean, rounding floor and factor of all blocks together, f64 ``[3]`` (Chan et al. 1979, eq. 2.1)."""
    count_P, mean_P, squares_P = moments_P3.unbind(1)
    count = count_P.sum()
    mean = (count_P * mean_P).sum() / count.clamp(min=1)
    squares = (squares_P + count_P * (mean_P - mean).square()).sum()
    factor = torch.rsqrt(squares / (count - 1).clamp(min=1) + eps)
    return torch.stack((mean, torch.finfo(torch.float32).eps * mean.abs(), factor))
