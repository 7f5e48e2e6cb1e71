"""Whitening of advantages over the response mask."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import SINGLE_AND_DOUBLE, runs_on_triton, unsupported
from kernels.masked_whiten.reference import masked_whiten_reference

__all__ = ["masked_whiten", "masked_whiten_reference"]


def masked_whiten(x: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """``(x - mean) / sqrt(var + eps)`` over the mask, exactly 0 elsewhere; moments in f64, no gradient.

    Args:
        x: f32 or f64, any shape; cells outside the mask may hold anything, a NaN inside stays visible.
        mask: bool, same shape.
        eps: added to the variance (Bessel's correction).

    Returns f32 of ``x``'s shape. One cell, or all-equal cells, give exactly 0.
    Raises ValueError on CUDA for another dtype, and for a mask that is not bool or has another shape.
    """
    fast = runs_on_triton("masked_whiten", SINGLE_AND_DOUBLE, x, beside=[mask])
    if mask.dtype != torch.bool or mask.shape != x.shape:
        raise unsupported("masked_whiten", f"a mask {mask.dtype} {tuple(mask.shape)}, only torch.bool {tuple(x.shape)}")
    if not fast:
        return masked_whiten_reference(x, mask, eps)
    from kernels.masked_whiten.triton import masked_whiten_triton

    return masked_whiten_triton(x, mask, eps)
