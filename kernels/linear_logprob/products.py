"""Matrix products with f32 accumulation and f32 results from half-precision factors.

cuBLAS does this in one call; the CPU branch exists for Triton's interpreter.
"""

from __future__ import annotations

import torch
from torch import Tensor


def product_f32(a: Tensor, b: Tensor, out: Tensor) -> None:
    """``out = a @ b``, ``out`` f32."""
    if a.dtype == torch.float32:
        torch.mm(a, b, out=out)
    elif a.is_cuda:
        torch.mm(a, b, out_dtype=torch.float32, out=out)
    else:
        out.copy_(a.float() @ b.float())


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``; rounded once to ``total``'s dtype, which is f32 or that of the factors."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.add_(a.float() @ b.float())
