"""Backward recurrences as parallel scans inside a block, blocks taken from the last to the first.

A program owns a row and carries the state at the left edge of the block it has done into the next. Arithmetic is f64.
Shape suffixes: B rows, T tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _compose(later_decay, later_input, earlier_decay, earlier_input):
    """Two steps of ``y -> x + a y``, the later token's first."""
    return later_decay * earlier_decay, earlier_input + earlier_decay * later_input


@triton.jit
def _scan_row(decay_BT, input_BT, output_BT, num_tokens, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * num_tokens
    num_blocks = tl.cdiv(num_tokens, BLOCK)
    carry = tl.zeros([1], tl.float64)
    for index in range(num_blocks):
        at = (num_blocks - 1 - index) * BLOCK + tl.arange(0, BLOCK)
        inside = at < num_tokens
        decay = tl.load(decay_BT + row + at, mask=inside, other=1.0).to(tl.float64)
        value = tl.load(input_BT + row + at, mask=inside, other=0.0).to(tl.float64)
        decay, value = tl.associative_scan((decay, value), 0, _compose, reverse=True)
        result = value + decay * carry
        tl.store(output_BT + row + at, result.to(output_BT.dtype.element_ty), mask=inside)
        carry = tl.sum(tl.where(tl.arange(0, BLOCK) == 0, result, 0.0), axis=0, keep_dims=True)


@triton.jit
def _compose_gae(a_later, b_later, c_later, d_later, e_later, a, b, c, d, e):
    """Two steps of ``(A, V) -> (a A + b V + c, d V + e)``, the later token's first."""
    return a * a_later, a * b_later + b * d_later, a * c_later + b * e_later + c, d * d_later, d * e_later + e


@triton.jit
def _gae_row(
    rewards_BT,
    values_BT,
    mask_BT,
    ends_BT,
    advantages_BT,
    returns_BT,
    num_tokens,
    GAMMA: tl.constexpr,
    GAMMA_LAM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Constants, not arguments: those would be rounded to f32, and 0.99^1000 would be off by 1e-5.
    gamma = tl.full([BLOCK], GAMMA, tl.float64)
    gamma_lam = tl.full([BLOCK], GAMMA_LAM, tl.float64)
    row = tl.program_id(0).to(tl.int64) * num_tokens
    num_blocks = tl.cdiv(num_tokens, BLOCK)
    advantage_carry = tl.zeros([1], tl.float64)
    value_carry = tl.zeros([1], tl.float64)
    for index in range(num_blocks):
        at = (num_blocks - 1 - index) * BLOCK + tl.arange(0, BLOCK)
        inside = at < num_tokens
        counted = inside & (tl.load(mask_BT + row + at, mask=inside, other=0) != 0)
        # What lies behind an end must not come through: the step is then constant.
        opened = tl.where(inside & (tl.load(ends_BT + row + at, mask=inside, other=0) != 0), 0.0, 1.0).to(tl.float64)
        rewards = tl.where(counted, tl.load(rewards_BT + row + at, mask=inside, other=0.0).to(tl.float64), 0.0)
        values = tl.where(counted, tl.load(values_BT + row + at, mask=inside, other=0.0).to(tl.float64), 0.0)
        a = tl.where(counted, gamma_lam, 1.0) * opened
        b = tl.where(counted, gamma, 0.0) * opened
        c = rewards - values
        d = tl.where(counted, 0.0, 1.0) * opened
        a, b, c, d, e = tl.associative_scan((a, b, c, d, values), 0, _compose_gae, reverse=True)
        advantages = a * advantage_carry + b * value_carry + c
        upcoming = d * value_carry + e
        kept = tl.where(counted, advantages, 0.0)
        tl.store(advantages_BT + row + at, kept.to(advantages_BT.dtype.element_ty), mask=inside)
        tl.store(returns_BT + row + at, (kept + values).to(returns_BT.dtype.element_ty), mask=inside)
        first = tl.arange(0, BLOCK) == 0
        advantage_carry = tl.sum(tl.where(first, advantages, 0.0), axis=0, keep_dims=True)
        value_carry = tl.sum(tl.where(first, upcoming, 0.0), axis=0, keep_dims=True)


def reverse_scan_triton(decay_BT: Tensor, input_BT: Tensor, block: int = BLOCK) -> Tensor:
    """See :func:`kernels.reverse_scan.reverse_scan`."""
    num_rows, num_tokens = input_BT.shape
    output_BT = torch.empty_like(input_BT, memory_format=torch.contiguous_format)
    if output_BT.numel() > 0:
        _scan_row[(num_rows,)](decay_BT.contiguous(), input_BT.contiguous(), output_BT, num_tokens, BLOCK=block)
    return output_BT


def gae_triton(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, ends_BT: Tensor, gamma: float, lam: float, block: int = BLOCK
) -> tuple[Tensor, Tensor]:
    """See :func:`kernels.reverse_scan.gae`."""
    num_rows, num_tokens = rewards_BT.shape
    advantages_BT = torch.empty_like(rewards_BT, memory_format=torch.contiguous_format)
    returns_BT = torch.empty_like(advantages_BT)
    if advantages_BT.numel() > 0:
        _gae_row[(num_rows,)](
            rewards_BT.contiguous(),
            values_BT.contiguous(),
            mask_BT.contiguous().view(torch.uint8),
            ends_BT.contiguous().view(torch.uint8),
            advantages_BT,
            returns_BT,
            num_tokens,
            GAMMA=float(gamma),
            GAMMA_LAM=float(gamma * lam),
            BLOCK=block,
        )
    return advantages_BT, returns_BT
