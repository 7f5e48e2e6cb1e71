"""Rotary position embedding of packed tokens, forward and backward.

Shape suffixes: T tokens, N heads, K head dim, R rotated half.
"""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import HALF_AND_SINGLE, runs_on_triton, unsupported
from kernels.rope.reference import rope_reference

__all__ = ["rope", "rope_reference"]


def rope(x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotate channel i against channel i + R by the token's angle i; channels from 2R on stay.

    Args:
        x_TNK: queries or keys, bf16, f16 or f32; may be a view into a fused projection.
        cos_TR: f32, cosines of the token's angles; no gradient.
        sin_TR: f32, sines.

    Returns a contiguous tensor of x's shape and dtype, rounded once from f32.
    Raises ValueError on CUDA for other dtypes or where 2R exceeds K.
    """
    if not runs_on_triton("rope", HALF_AND_SINGLE, x_TNK, cos_TR, sin_TR):
        return rope_reference(x_TNK, cos_TR, sin_TR)
    if cos_TR.shape != sin_TR.shape or cos_TR.shape[0] != x_TNK.shape[0] or 2 * cos_TR.shape[1] > x_TNK.shape[2]:
        raise unsupported("rope", f"x {tuple(x_TNK.shape)} with angles {tuple(cos_TR.shape)}")
    from kernels.rope.triton import rope_triton

    return rope_triton(x_TNK, cos_TR, sin_TR)
