"""Specification of rotary position embedding, halves layout.

Shape suffixes: T tokens, N heads, K head dim, R rotated half.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_reference(x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotate channel i against channel i + R by the token's angle i (Su et al. 2021, sec. 3.2.2); channels from 2R on stay.

    Computes in at least f32 and rounds once.
    """
    half = cos_TR.shape[-1]
    dtype = torch.promote_types(x_TNK.dtype, torch.float32)
    cos, sin = cos_TR[:, None, :].to(dtype), sin_TR[:, None, :].to(dtype)
    first, second = x_TNK[..., :half].to(dtype), x_TNK[..., half : 2 * half].to(dtype)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat((rotated.to(x_TNK.dtype), x_TNK[..., 2 * half :]), dim=-1)
