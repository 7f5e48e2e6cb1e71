"""Rotary position embedding; the backward pass is the rotation by the opposite angle.

Shape suffixes: T tokens, N heads, K head dim, R rotated half.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PAIRS = 2048
"""Rotated pairs one program handles."""


@triton.jit
def _rotate(
    x_TNK,
    cos_TR,
    sin_TR,
    output_TNK,
    num_rows,
    num_heads,
    half,
    head_dim,
    token_stride,
    head_stride,
    sign,
    REST: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tokens, heads = rows // num_heads, rows % num_heads
    channels = tl.arange(0, HALF)
    inside = (rows < num_rows)[:, None] & (channels < half)[None, :]
    angles = tokens[:, None] * half + channels[None, :]
    cos = tl.load(cos_TR + angles, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_TR + angles, mask=inside, other=0.0).to(tl.float32) * sign
    read = x_TNK + tokens[:, None] * token_stride + heads[:, None] * head_stride
    write = output_TNK + rows[:, None] * head_dim
    first = tl.load(read + channels[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(read + half + channels[None, :], mask=inside, other=0.0).to(tl.float32)
    dtype = output_TNK.dtype.element_ty
    tl.store(write + channels[None, :], (first * cos - second * sin).to(dtype), mask=inside)
    tl.store(write + half + channels[None, :], (second * cos + first * sin).to(dtype), mask=inside)
    if REST > 0:
        others = 2 * half + tl.arange(0, REST)
        kept = (rows < num_rows)[:, None] & (others < head_dim)[None, :]
        tl.store(write + others[None, :], tl.load(read + others[None, :], mask=kept), mask=kept)


def _launch(x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor, sign: float) -> Tensor:
    if x_TNK.stride(-1) != 1:
        x_TNK = x_TNK.contiguous()
    num_tokens, num_heads, head_dim = x_TNK.shape
    output_TNK = torch.empty(x_TNK.shape, dtype=x_TNK.dtype, device=x_TNK.device)
    half = cos_TR.shape[-1]
    padded_half = triton.next_power_of_2(half)
    rows = max(1, PAIRS // padded_half)
    if output_TNK.numel() > 0:
        _rotate[(triton.cdiv(num_tokens * num_heads, rows),)](
            x_TNK,
            cos_TR,
            sin_TR,
            output_TNK,
            num_tokens * num_heads,
            num_heads,
            half,
            head_dim,
            x_TNK.stride(0),
            x_TNK.stride(1),
            sign,
            REST=triton.next_power_of_2(head_dim - 2 * half) if head_dim > 2 * half else 0,
            ROWS=rows,
            HALF=padded_half,
        )
    return output_TNK


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        ctx.save_for_backward(cos_TR, sin_TR)
        return _launch(x_TNK, cos_TR, sin_TR, 1.0)

    @staticmethod
    def backward(ctx: Any, grad_TNK: Tensor) -> tuple[Tensor | None, ...]:
        cos_TR, sin_TR = ctx.saved_tensors
        return _launch(grad_TNK, cos_TR, sin_TR, -1.0), None, None


def rope_triton(x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """See :func:`kernels.rope.rope`."""
    output: Tensor = _Rope.apply(x_TNK, cos_TR.contiguous(), sin_TR.contiguous())
    return output
