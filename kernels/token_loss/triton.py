"""The token loss, its sums and both gradients in one pass over the tokens."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.token_loss.inputs import TokenLossInputs, TokenLossRule, TokenLossSums, checked_rule

BLOCK = 1024
NUM_SUMS = 8
KL_CODES = {"k1": 1, "k2": 2, "k3": 3, "abs": 4}


@triton.jit
def _kl_and_slope(difference, KIND: tl.constexpr):
    if KIND == 1:
        kl, slope = difference, tl.full(difference.shape, 1.0, tl.float32)
    elif KIND == 2:
        kl, slope = 0.5 * difference * difference, difference
    elif KIND == 3:
        bounded = tl.minimum(tl.maximum(difference, -20.0), 20.0)
        inverse = tl.exp(-bounded)
        # The series where 1 - 1 would cancel; its next term is below one f32 unit in the last place.
        near = bounded * bounded * (0.5 - bounded * (1.0 / 6.0 - bounded * (1.0 / 24.0)))
        kl = tl.where(tl.abs(bounded) < 0.02, near, inverse - 1.0 + bounded)
        slope = tl.where(tl.abs(difference) <= 20.0, 1.0 - inverse, 0.0)
    else:
        kl = tl.abs(difference)
        slope = tl.where(difference > 0, 1.0, tl.where(difference < 0, -1.0, 0.0))
    return kl, slope


@triton.jit
def _load(values_T, at, inside, counted):
    """0 where not counted. Loading under ``counted`` would split vector loads into single elements."""
    return tl.where(counted, tl.load(values_T + at, mask=inside, other=0.0), 0.0)


@triton.jit
def _token_loss(
    logprobs_T,
    old_logprobs_T,
    advantages_T,
    weights_T,
    mask_T,
    importance_T,
    ref_logprobs_T,
    entropy_T,
    grad_logprobs_T,
    grad_entropy_T,
    sums_PS,
    num_tokens,
    lowest_ratio,
    highest_ratio,
    clip_c,
    entropy_coeff,
    kl_coeff,
    IMPORTANCE: tl.constexpr,
    KL: tl.constexpr,
    ENTROPY: tl.constexpr,
    DUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    at = program * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_tokens
    counted = inside & (tl.load(mask_T + at, mask=inside, other=0) != 0)
    weights = _load(weights_T, at, inside, counted)
    advantages = _load(advantages_T, at, inside, counted)
    logprobs = _load(logprobs_T, at, inside, counted)
    raw = logprobs - _load(old_logprobs_T, at, inside, counted)
    log_ratio = tl.where(raw > 20.0, 20.0, tl.where(raw < -20.0, -20.0, raw))
    ratio = tl.exp(log_ratio)
    bounded_ratio = tl.where(ratio > highest_ratio, highest_ratio, tl.where(ratio < lowest_ratio, lowest_ratio, ratio))
    free = -advantages * ratio
    bounded = -advantages * bounded_ratio
    clipped = bounded > free
    loss = tl.where(clipped, bounded, free)
    slope = tl.where(clipped | (tl.abs(raw) > 20.0), 0.0, free)
    lower = tl.zeros([BLOCK], tl.int1)
    if DUAL:
        ceiling = -advantages * clip_c
        lower = (advantages < 0) & (loss > ceiling)
        loss = tl.where(lower, ceiling, loss)
        slope = tl.where(lower, 0.0, slope)
    surrogate_weights = weights
    if IMPORTANCE:
        surrogate_weights = weights * _load(importance_T, at, inside, counted)
    surrogate = tl.sum(surrogate_weights * loss, axis=0)
    grad = surrogate_weights * slope
    total = surrogate
    row = sums_PS + program * 8
    if KL > 0:
        kl, kl_slope = _kl_and_slope(logprobs - _load(ref_logprobs_T, at, inside, counted), KL)
        total += kl_coeff * tl.sum(weights * kl, axis=0)
        grad += kl_coeff * weights * kl_slope
        tl.store(row + 3, tl.sum(kl, axis=0))
    else:
        tl.store(row + 3, 0.0)
    if ENTROPY:
        entropy = tl.sum(weights * _load(entropy_T, at, inside, counted), axis=0)
        total -= entropy_coeff * entropy
        tl.store(grad_entropy_T + at, -entropy_coeff * weights, mask=inside)
        tl.store(row + 2, entropy)
    else:
        tl.store(row + 2, 0.0)
    tl.store(grad_logprobs_T + at, grad, mask=inside)
    tl.store(row, total)
    tl.store(row + 1, surrogate)
    tl.store(row + 4, tl.sum((clipped & counted).to(tl.float32), axis=0))
    tl.store(row + 5, tl.sum((lower & counted).to(tl.float32), axis=0))
    tl.store(row + 6, -tl.sum(log_ratio, axis=0))
    tl.store(row + 7, tl.max(tl.abs(ratio - 1.0), axis=0))


def _launch(
    logprobs: Tensor, entropy: Tensor | None, inputs: TokenLossInputs, rule: TokenLossRule
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sums ``[8]`` in the order of :class:`TokenLossSums`, gradient by log-probs, gradient by entropy."""
    num_tokens = logprobs.numel()
    num_programs = triton.cdiv(num_tokens, BLOCK)
    grad_logprobs = torch.empty_like(logprobs)
    grad_entropy = None if entropy is None else torch.empty_like(entropy)
    sums_PS = torch.empty(num_programs, NUM_SUMS, dtype=torch.float32, device=logprobs.device)
    unused = logprobs
    if num_programs > 0:
        _token_loss[(num_programs,)](
            logprobs,
            inputs.old_logprobs.contiguous(),
            inputs.advantages.contiguous(),
            inputs.weights.contiguous(),
            inputs.mask.contiguous().view(torch.uint8),
            unused if inputs.importance is None else inputs.importance.contiguous(),
            unused if inputs.ref_logprobs is None else inputs.ref_logprobs.contiguous(),
            unused if entropy is None else entropy,
            grad_logprobs,
            unused if grad_entropy is None else grad_entropy,
            sums_PS,
            num_tokens,
            1.0 - rule.clip_low,
            1.0 + rule.clip_high,
            0.0 if rule.clip_c is None else float(rule.clip_c),
            float(rule.entropy_coeff),
            float(rule.kl_coeff),
            IMPORTANCE=inputs.importance is not None,
            KL=0 if inputs.ref_logprobs is None else KL_CODES[rule.kl_kind],
            ENTROPY=entropy is not None,
            DUAL=rule.clip_c is not None,
            BLOCK=BLOCK,
        )
    added_S = sums_PS.double().sum(0).float()
    # The last column is a maximum; a row of zeros makes it 0 without tokens.
    added_S[7] = torch.nn.functional.pad(sums_PS[:, 7], (0, 1)).amax()
    return added_S, grad_logprobs, grad_entropy


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logprobs: Tensor, entropy: Tensor | None, inputs: TokenLossInputs, rule: TokenLossRule
    ) -> tuple[Tensor, Tensor]:
        sums_S, grad_logprobs, grad_entropy = _launch(logprobs, entropy, inputs, rule)
        ctx.save_for_backward(grad_logprobs, grad_entropy)
        ctx.mark_non_differentiable(sums_S)
        return sums_S[0].clone(), sums_S

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_logprobs, grad_entropy = ctx.saved_tensors
        return grad_loss * grad_logprobs, None if grad_entropy is None else grad_loss * grad_entropy, None, None


def token_loss_triton(inputs: TokenLossInputs, rule: TokenLossRule) -> TokenLossSums:
    """See :func:`kernels.token_loss.token_loss`."""
    checked_rule(inputs, rule)
    entropy = None if inputs.entropy is None else inputs.entropy.contiguous()
    loss, sums_S = _TokenLoss.apply(inputs.logprobs.contiguous(), entropy, inputs, rule)
    _, surrogate, entropy_sum, kl, clipped, lower, old_kl, deviation = sums_S.unbind()
    return TokenLossSums(
        loss=loss,
        surrogate=surrogate,
        entropy=entropy_sum,
        kl=kl,
        num_clipped=clipped,
        num_clipped_lower=lower,
        old_kl=old_kl,
        max_ratio_deviation=deviation,
    )
