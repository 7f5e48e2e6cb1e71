"""Statistics over the cells a mask counts.

Cells outside the mask may hold anything, NaN included; a NaN *inside* the mask is a fault and stays visible.
Sums run in float64, so their result does not depend on the order of rows or on a half-precision input.
"""

from __future__ import annotations

import torch
from torch import Tensor


def keep(x: Tensor, mask: Tensor) -> Tensor:
    """Return ``x`` where ``mask`` is True and exactly 0 elsewhere (``x * mask`` would keep NaN and pass its gradient)."""
    return torch.where(mask, x, torch.zeros_like(x))


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum over the mask; float64 scalar."""
    return keep(x, mask).double().sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the mask; float64 scalar, 0 for an empty mask."""
    return masked_sum(x, mask) / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor) -> Tensor:
    """Variance over the mask with Bessel's correction; float64 scalar, 0 for fewer than two cells."""
    centred = keep(x.double() - masked_mean(x, mask), mask)
    return centred.square().sum() / (mask.sum() - 1).clamp(min=1)


def masked_whiten(x: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """Shift and scale to mean 0 and variance 1 over the mask: ``(x - mean) / sqrt(var + eps)``.

    Returns float64 of ``x``'s shape, 0 outside the mask. One single or all-equal cells give exactly 0.
    """
    mean = masked_mean(x, mask)
    # A mean of equal numbers may miss them by an ulp, which 1/sqrt(eps) would blow up.
    floor = torch.finfo(torch.float32).eps * mean.abs()
    centred = x.double() - mean
    centred = torch.where(centred.abs() <= floor, torch.zeros_like(centred), centred)
    return keep(centred * torch.rsqrt(masked_var(x, mask) + eps), mask)
