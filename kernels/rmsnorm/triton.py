"""Root-mean-square normalisation, a row per program; the row stays in registers.

Shape suffixes: N rows, H hidden, P programs of the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_HIDDEN = 16384
BACKWARD_PROGRAMS = 264
"""Two for each of an H200's multiprocessors; each leaves one partial weight gradient."""


@triton.jit
def _forward(x_NH, weight_H, output_NH, scale_N, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    x = tl.load(x_NH + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / hidden + eps)
    normed = (x * scale).to(output_NH.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_H + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(output_NH + row * hidden + at, (normed * weight).to(output_NH.dtype.element_ty), mask=inside)
    tl.store(scale_N + row, scale)


@triton.jit
def _backward(
    x_NH, weight_H, scale_N, grad_NH, grad_x_NH, grad_weight_PH, num_rows, rows_per_program, hidden, BLOCK: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < hidden
    weight = tl.load(weight_H + at, mask=inside, other=0.0).to(tl.float32)
    grad_weight = tl.zeros([BLOCK], tl.float32)
    first = program * rows_per_program
    for row in range(first, tl.minimum(first + rows_per_program, num_rows)):
        x = tl.load(x_NH + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_NH + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_N + row)
        normed = x * scale
        grad_weight += grad * normed
        grad *= weight
        along = tl.sum(grad * normed, axis=0) / hidden
        grad_x = (grad - normed * along) * scale
        tl.store(grad_x_NH + row * hidden + at, grad_x.to(grad_x_NH.dtype.element_ty), mask=inside)
    tl.store(grad_weight_PH + program * hidden + at, grad_weight, mask=inside)


def _num_warps(block: int) -> int:
    return max(1, min(16, block // 512))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        hidden = x.shape[-1]
        x_NH = x.contiguous().view(-1, hidden)
        output_NH = torch.empty_like(x_NH)
        scale_N = torch.empty(x_NH.shape[0], dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(hidden)
        if x_NH.shape[0] > 0:
            _forward[(x_NH.shape[0],)](
                x_NH, weight_H, output_NH, scale_N, hidden, eps, BLOCK=block, num_warps=_num_warps(block)
            )
        ctx.save_for_backward(x_NH, weight_H, scale_N)
        return output_NH.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x_NH, weight_H, scale_N = ctx.saved_tensors
        num_rows, hidden = x_NH.shape
        grad_x_NH = torch.empty_like(x_NH)
        rows_per_program = max(1, triton.cdiv(num_rows, BACKWARD_PROGRAMS))
        num_programs = triton.cdiv(num_rows, rows_per_program)
        grad_weight_PH = torch.empty(num_programs, hidden, dtype=torch.float32, device=x_NH.device)
        block = triton.next_power_of_2(hidden)
        if num_rows > 0:
            _backward[(num_programs,)](
                x_NH,
                weight_H,
                scale_N,
                grad.contiguous(),
                grad_x_NH,
                grad_weight_PH,
                num_rows,
                rows_per_program,
                hidden,
                BLOCK=block,
                num_warps=_num_warps(block),
            )
        return grad_x_NH.view(grad.shape), grad_weight_PH.sum(0).to(weight_H.dtype), None


def rmsnorm_triton(x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """See :func:`kernels.rmsnorm.rmsnorm`."""
    output: Tensor = _RmsNorm.apply(x, weight_H.contiguous(), eps)
    return output
