"""Root-mean-square normalisation, forward and backward."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import HALF_AND_SINGLE, runs_on_triton, unsupported
from kernels.rmsnorm.reference import rmsnorm_reference

__all__ = ["rmsnorm", "rmsnorm_reference"]


def rmsnorm(x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dim.

    Args:
        x: ``[..., H]``, bf16, f16 or f32; H at most 16,384 on CUDA.
        weight_H: same dtype. Its gradient adds up in f32, in a fixed order, and is rounded once.
        eps: inside the root.

    Returns x's shape and dtype. Raises ValueError on CUDA for other dtypes, mixed dtypes or a larger H.
    """
    if not runs_on_triton("rmsnorm", HALF_AND_SINGLE, x, weight_H):
        return rmsnorm_reference(x, weight_H, eps)
    from kernels.rmsnorm.triton import MAX_HIDDEN, rmsnorm_triton

    if x.dtype != weight_H.dtype:
        raise unsupported("rmsnorm", f"x {x.dtype} with weight {weight_H.dtype}")
    if x.shape[-1] > MAX_HIDDEN or weight_H.shape != x.shape[-1:]:
        raise unsupported("rmsnorm", f"x {tuple(x.shape)} with weight {tuple(weight_H.shape)}, rows up to {MAX_HIDDEN}")
    return rmsnorm_triton(x, weight_H, eps)
