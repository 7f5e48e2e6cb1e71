"""Specification of root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


def rmsnorm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dim, the mean in at least f32 (Zhang and Sennrich 2019, eq. 4).

    The normalised row is rounded to ``x``'s dtype before the weight, as the models' checkpoints were trained.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight
