"""Specification of the clipped policy loss on tokens, plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.token_loss.inputs import MAX_LOG_RATIO, TokenLossInputs, TokenLossRule, TokenLossSums, checked_rule


def token_loss_reference(inputs: TokenLossInputs, rule: TokenLossRule) -> TokenLossSums:
    """``sum_t w_t (c_t L_t - entropy_coeff H_t + kl_coeff KL_t)`` over the mask.

    ``rho = exp(clamp(log pi - log pi_old, -20, 20))`` and ``L = max(-rho A, -clip(rho, 1 - low, 1 + high) A)``, for
    A < 0 at most ``-clip_c A`` (Schulman et al. 2017, eq. 7; Ye et al. 2020, eq. 5). KL estimators after Schulman 2020.
    """
    checked_rule(inputs, rule)
    mask = inputs.mask
    weights, advantages = _keep(inputs.weights, mask), _keep(inputs.advantages, mask)
    logprobs = _keep(inputs.logprobs, mask)
    log_ratio = (logprobs - _keep(inputs.old_logprobs, mask)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    token_loss, clipped, lower = _surrogate(log_ratio.exp(), advantages, rule)
    importance = 1.0 if inputs.importance is None else _keep(inputs.importance, mask)
    surrogate = (weights * importance * token_loss).sum()
    zero = torch.zeros_like(surrogate)
    entropy = zero if inputs.entropy is None else (weights * _keep(inputs.entropy, mask)).sum()
    kl = torch.zeros_like(weights)
    if inputs.ref_logprobs is not None:
        kl = _kl(logprobs - _keep(inputs.ref_logprobs, mask), rule.kl_kind)
    loss = surrogate - rule.entropy_coeff * entropy + rule.kl_coeff * (weights * kl).sum()
    deviation = torch.expm1(log_ratio.detach()).abs().flatten()
    return TokenLossSums(
        loss=loss,
        surrogate=surrogate.detach(),
        entropy=entropy.detach(),
        kl=kl.detach().sum(),
        num_clipped=(clipped & mask).sum().to(weights.dtype),
        num_clipped_lower=(lower & mask).sum().to(weights.dtype),
        old_kl=-log_ratio.detach().sum(),
        max_ratio_deviation=torch.cat([deviation, deviation.new_zeros(1)]).max(),
    )


def _keep(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, torch.zeros_like(x))


def _surrogate(ratio: Tensor, advantages: Tensor, rule: TokenLossRule) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and which tokens are clipped by the bound and by the dual clip."""
    free = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - rule.clip_low, 1 + rule.clip_high)
    loss, clipped = torch.maximum(free, bounded), bounded > free
    if rule.clip_c is None:
        return loss, clipped, torch.zeros_like(clipped)
    ceiling = -advantages * rule.clip_c
    lower = (advantages < 0) & (loss > ceiling)
    return torch.where(lower, ceiling, loss), clipped, lower


def _kl(log_ratio: Tensor, kind: str) -> Tensor:
    if kind == "k1":
        return log_ratio
    if kind == "k2":
        return 0.5 * log_ratio.square()
    if kind == "abs":
        return log_ratio.abs()
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(-bounded) + bounded
