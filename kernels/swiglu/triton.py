"""The gated activation; the backward pass recomputes it from the input.

Shape suffixes: N rows, F features of the result.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _forward(gate_up_N2F, output_NF, features, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < features
    pair = gate_up_N2F + row * 2 * features + at
    gate = tl.load(pair, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(pair + features, mask=inside, other=0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * up
    tl.store(output_NF + row * features + at, result.to(output_NF.dtype.element_ty), mask=inside)


@triton.jit
def _backward(gate_up_N2F, grad_NF, grad_gate_up_N2F, features, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < features
    pair = row * 2 * features + at
    gate = tl.load(gate_up_N2F + pair, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_N2F + pair + features, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_NF + row * features + at, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    grad_gate = grad * up * open_ * (1.0 + gate * (1.0 - open_))
    dtype = grad_gate_up_N2F.dtype.element_ty
    tl.store(grad_gate_up_N2F + pair, grad_gate.to(dtype), mask=inside)
    tl.store(grad_gate_up_N2F + pair + features, (grad * gate * open_).to(dtype), mask=inside)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        features = gate_up.shape[-1] // 2
        output = torch.empty(*gate_up.shape[:-1], features, dtype=gate_up.dtype, device=gate_up.device)
        if output.numel() > 0:
            _forward[(output.numel() // features, triton.cdiv(features, BLOCK))](gate_up, output, features, BLOCK=BLOCK)
        ctx.save_for_backward(gate_up)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        grad_gate_up = torch.empty_like(gate_up)
        features = grad.shape[-1]
        if grad.numel() > 0:
            grid = (grad.numel() // features, triton.cdiv(features, BLOCK))
            _backward[grid](gate_up, grad.contiguous(), grad_gate_up, features, BLOCK=BLOCK)
        return grad_gate_up


def swiglu_triton(gate_up: Tensor) -> Tensor:
    """See :func:`kernels.swiglu.swiglu`."""
    output: Tensor = _SwiGlu.apply(gate_up)
    return output
