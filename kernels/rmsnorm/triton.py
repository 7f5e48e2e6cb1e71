"""Root-mean-square normalisation; a program holds a few whole rows in registers.

Shape suffixes: N rows, H hidden, P programs of the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_HIDDEN = 16384
ELEMENTS = 4096
"""Of a tile; a longer row makes a tile of its own."""
BACKWARD_PROGRAMS = 264
"""Two for each of an H200's multiprocessors; each leaves one partial weight gradient."""


@triton.jit
def _forward(x_NH, weight_H, output_NH, scale_N, num_rows, hidden, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (rows < num_rows)[:, None] & (at < hidden)[None, :]
    cells = rows[:, None] * hidden + at[None, :]
    x = tl.load(x_NH + cells, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / hidden + eps)
    normed = (x * scale[:, None]).to(output_NH.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_H + at, mask=at < hidden, other=0.0).to(tl.float32)
    tl.store(output_NH + cells, (normed * weight[None, :]).to(output_NH.dtype.element_ty), mask=inside)
    tl.store(scale_N + rows, scale, mask=rows < num_rows)


@triton.jit
def _backward(
    x_NH,
    weight_H,
    scale_N,
    grad_NH,
    grad_x_NH,
    grad_weight_PH,
    num_rows,
    rows_per_program,
    hidden,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside_row = at < hidden
    weight = tl.load(weight_H + at, mask=inside_row, other=0.0).to(tl.float32)
    grad_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    first = program * rows_per_program
    last = tl.minimum(first + rows_per_program, num_rows)
    rows = first + tl.arange(0, ROWS)
    inside = (rows < last)[:, None] & inside_row[None, :]
    cells = rows[:, None] * hidden + at[None, :]
    # The next tile's loads are under way while this one's sums are waited for.
    next_x = tl.load(x_NH + cells, mask=inside, other=0.0)
    next_grad = tl.load(grad_NH + cells, mask=inside, other=0.0)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < last)[:, None] & inside_row[None, :]
        cells = rows[:, None] * hidden + at[None, :]
        x = next_x.to(tl.float32)
        grad = next_grad.to(tl.float32)
        ahead = (rows + ROWS < last)[:, None] & inside_row[None, :]
        next_x = tl.load(x_NH + cells + ROWS * hidden, mask=ahead, other=0.0)
        next_grad = tl.load(grad_NH + cells + ROWS * hidden, mask=ahead, other=0.0)
        scale = tl.load(scale_N + rows, mask=rows < last, other=0.0)[:, None]
        normed = x * scale
        grad_weight += grad * normed
        grad *= weight[None, :]
        along = tl.sum(grad * normed, axis=1) / hidden
        grad_x = (grad - normed * along[:, None]) * scale
        tl.store(grad_x_NH + cells, grad_x.to(grad_x_NH.dtype.element_ty), mask=inside)
    tl.store(grad_weight_PH + program * hidden + at, tl.sum(grad_weight, axis=0), mask=inside_row)


def _tile(hidden: int) -> dict[str, int]:
    """Launch options: whole rows, 8 numbers a thread where a row is short enough."""
    block = triton.next_power_of_2(hidden)
    rows = max(1, ELEMENTS // block)
    return {"ROWS": rows, "BLOCK": block, "num_warps": max(1, min(16, rows * block // 256))}


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
        hidden = x.shape[-1]
        x_NH = x.contiguous().view(-1, hidden)
        output_NH = torch.empty_like(x_NH)
        scale_N = torch.empty(x_NH.shape[0], dtype=torch.float32, device=x.device)
        num_rows = x_NH.shape[0]
        if num_rows > 0:
            tile = _tile(hidden)
            _forward[(triton.cdiv(num_rows, tile["ROWS"]),)](x_NH, weight_H, output_NH, scale_N, num_rows, hidden, eps, **tile)
        ctx.save_for_backward(x_NH, weight_H, scale_N)
        return output_NH.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_NH, weight_H, scale_N = ctx.saved_tensors
        num_rows, hidden = x_NH.shape
        grad_x_NH = torch.empty_like(x_NH)
        tile = _tile(hidden)
        rows_per_program = triton.cdiv(max(1, triton.cdiv(num_rows, BACKWARD_PROGRAMS)), tile["ROWS"]) * tile["ROWS"]
        num_programs = triton.cdiv(num_rows, rows_per_program)
        grad_weight_PH = torch.empty(num_programs, hidden, dtype=torch.float32, device=x_NH.device)
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
                **tile,
            )
        return grad_x_NH.view(grad.shape), grad_weight_PH.sum(0).to(weight_H.dtype), None


def rmsnorm_triton(x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """See :func:`kernels.rmsnorm.rmsnorm`."""
    output: Tensor = _RmsNorm.apply(x, weight_H.contiguous(), eps)
    return output
