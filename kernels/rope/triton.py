"""Rotary position embedding; the backward pass is the rotation by the opposite angle.

Shape suffixes: T tokens, N heads, K head dim, R rotated half.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 2048
"""Rotated pairs one program handles."""


@triton.jit
def _rotate(
    x_TNK,
    cos_TR,
    sin_TR,
    output_TNK,
    num_heads,
    half,
    head_dim,
    token_stride,
    head_stride,
    sign,
    REST: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    channels = tl.arange(0, HALF)
    rotated = channels < half
    cos = tl.load(cos_TR + token * half + channels, mask=rotated, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_TR + token * half + channels, mask=rotated, other=0.0).to(tl.float32)[None, :] * sign
    read = x_TNK + token * token_stride + heads[:, None].to(tl.int64) * head_stride
    write = output_TNK + (token * num_heads + heads[:, None]) * head_dim
    inside = (heads < num_heads)[:, None] & rotated[None, :]
    first = tl.load(read + channels[None, :], mask=inside, other=0.0).to(tl.float32)
    second = tl.load(read + half + channels[None, :], mask=inside, other=0.0).to(tl.float32)
    dtype = output_TNK.dtype.element_ty
    tl.store(write + channels[None, :], (first * cos - second * sin).to(dtype), mask=inside)
    tl.store(write + half + channels[None, :], (second * cos + first * sin).to(dtype), mask=inside)
    if REST > 0:
        others = 2 * half + tl.arange(0, REST)
        kept = (heads < num_heads)[:, None] & (others < head_dim)[None, :]
        tl.store(write + others[None, :], tl.load(read + others[None, :], mask=kept), mask=kept)


def _launch(x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor, sign: float) -> Tensor:
    if x_TNK.stride(-1) != 1:
        x_TNK = x_TNK.contiguous()
    num_tokens, num_heads, head_dim = x_TNK.shape
    output_TNK = torch.empty(x_TNK.shape, dtype=x_TNK.dtype, device=x_TNK.device)
    half = cos_TR.shape[-1]
    padded_half = triton.next_power_of_2(half)
    heads = min(triton.next_power_of_2(num_heads), max(1, ELEMENTS // padded_half))
    if output_TNK.numel() > 0:
        _rotate[(num_tokens, triton.cdiv(num_heads, heads))](
            x_TNK,
            cos_TR,
            sin_TR,
            output_TNK,
            num_heads,
            half,
            head_dim,
            x_TNK.stride(0),
            x_TNK.stride(1),
            sign,
            REST=triton.next_power_of_2(head_dim - 2 * half) if head_dim > 2 * half else 0,
            HEADS=heads,
            HALF=padded_half,
        )
    return output_TNK


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        ctx.save_for_backward(cos_TR, sin_TR)
        return _launch(x_TNK, cos_TR, sin_TR, 1.0)

    @staticmethod
    def backward(ctx: Any, grad_TNK: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _launch(grad_TNK, *ctx.saved_tensors, -1.0), None, None


def rope_triton(x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """See :func:`kernels.rope.rope`."""
    output: Tensor = _Rope.apply(x_TNK, cos_TR.contiguous(), sin_TR.contiguous())
    return output
