"""Specification of whitening over a mask, in f64."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_whiten_reference(x: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """``(x - mean) / sqrt(var + eps)`` over the mask, 0 elsewhere; variance with Bessel's correction.

    Cells whose distance from the mean is no more than the mean's rounding error in f32 count as equal to it: 1/sqrt(eps)
    would blow that residue up. Returns f32 of ``x``'s shape.
    """
    kept = torch.where(mask, x.double(), 0.0)
    count = mask.sum()
    mean = kept.sum() / count.clamp(min=1)
    centred = torch.where(mask, kept - mean, 0.0)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    centred = torch.where(centred.abs() <= torch.finfo(torch.float32).eps * mean.abs(), 0.0, centred)
    return (centred * torch.rsqrt(variance + eps)).float()
