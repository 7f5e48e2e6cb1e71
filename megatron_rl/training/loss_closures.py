"""The scalar that some predicted tokens add to the loss of their mini-batch.

A loss is a sum over tokens with the mini-batch's weights, and so is every metric over ``num_response_tokens`` of the
whole mini-batch: both add up over micro-batches and data-parallel ranks to the same number however the batch was cut.
Where each token's loss depends on that token alone, they also add up over slices of a micro-batch.

Shape suffixes: N predicted tokens (types/batches.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from megatron_rl.algorithms.kl import kl_penalty
from megatron_rl.algorithms.policy_loss import POLICY_LOSSES, PolicyLossInputs, PolicyLossTerms
from megatron_rl.algorithms.value_loss import clipped_value_loss
from megatron_rl.config.training import SEQUENCE_LEVEL_LOSSES, ActorConfig, CriticConfig
from megatron_rl.ops import TokenLossInputs, TokenLossRule, clipped_policy_loss
from megatron_rl.types.batches import LossInputs
from megatron_rl.types.metrics import Reduction

PartialMetrics = dict[str, tuple[Tensor, Reduction]]
"""Detached scalars; ``sum`` or ``max`` over slices, micro-batches and data-parallel ranks gives the logged number."""


class LossFunction(Protocol):
    """What the training role calls on the last pipeline stage."""

    needs_entropy: bool
    """Whether ``entropy_N`` is wanted; without it no entropy graph is built."""
    is_separable: bool
    """Whether a token's loss depends on that token alone; if not, tokens of one sample are never handed in apart."""

    def __call__(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs) -> tuple[Tensor, PartialMetrics]:
        """Return these tokens' share of the loss (f32 scalar, may be a graph with zero gradient) and metrics.

        Args:
            outputs_N: f32, log-probs of the predicted tokens, or values.
            entropy_N: f32, entropy of the next-token distribution, nats; None unless ``needs_entropy``.
            inputs: the rest, of a micro-batch or (if ``is_separable``) any slice of one; there may be no token.
        """


class PolicyLoss:
    """Policy-gradient loss, entropy bonus and KL to the reference, all under the same weights.

    ``sum_t w_t (c_t L_t - entropy_coeff H_t + kl_loss_coef KL_t)``, c the rollout importance weights.
    """

    def __init__(self, config: ActorConfig) -> None:
        self.config = config
        self.needs_entropy = config.entropy_coeff != 0.0
        self.is_separable = config.policy_loss not in SEQUENCE_LEVEL_LOSSES
        self.token_loss = POLICY_LOSSES[config.policy_loss]

    def __call__(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs) -> tuple[Tensor, PartialMetrics]:
        """See :class:`LossFunction`; ``outputs_N`` are log-probs."""
        if self.config.policy_loss == "vanilla" and outputs_N.is_cuda:
            return self.in_one_pass(outputs_N, entropy_N, inputs)
        policy = self._policy_inputs(outputs_N, inputs)
        terms = self.token_loss(policy)
        loss = _weighted(terms.loss * inputs.importance_weights_N, inputs)
        metrics = _policy_metrics(loss, policy, terms, inputs)
        if self.needs_entropy:
            assert entropy_N is not None
            entropy = _weighted(entropy_N, inputs)
            loss = loss - self.config.entropy_coeff * entropy
            metrics["actor/entropy_loss"] = (entropy.detach(), "sum")
        if self.config.use_kl_loss:
            assert inputs.ref_logprobs_N is not None
            kl_N = kl_penalty(policy.logprobs, inputs.ref_logprobs_N, self.config.kl_loss_type)
            loss = loss + self.config.kl_loss_coef * _weighted(kl_N, inputs)
            metrics["actor/kl_loss"] = _mean(kl_N, inputs)
        metrics["actor/loss"] = (loss.detach(), "sum")
        return loss, metrics

    def in_one_pass(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs) -> tuple[Tensor, PartialMetrics]:
        """The same for ``vanilla`` as one kernel instead of some forty, whose launches would take longer than their work."""
        config, policy = self.config, self._policy_inputs(outputs_N, inputs)
        sums = clipped_policy_loss(
            TokenLossInputs(
                logprobs=policy.logprobs,
                old_logprobs=policy.old_logprobs,
                advantages=inputs.advantages_N,
                weights=inputs.loss_weights_N,
                mask=policy.mask,
                importance=inputs.importance_weights_N,
                ref_logprobs=inputs.ref_logprobs_N if config.use_kl_loss else None,
                entropy=entropy_N if self.needs_entropy else None,
            ),
            TokenLossRule(
                clip_low=policy.clip_low,
                clip_high=policy.clip_high,
                clip_c=policy.clip_c,
                entropy_coeff=config.entropy_coeff,
                kl_coeff=config.kl_loss_coef if config.use_kl_loss else 0.0,
                kl_kind=config.kl_loss_type,
            ),
        )
        num_tokens = max(inputs.num_response_tokens, 1)
        metrics: PartialMetrics = {
            "actor/pg_loss": (sums.surrogate, "sum"),
            "actor/pg_clipfrac": (sums.num_clipped / num_tokens, "sum"),
            "actor/pg_clipfrac_lower": (sums.num_clipped_lower / num_tokens, "sum"),
            "actor/ppo_kl": (sums.old_kl / num_tokens, "sum"),
            "actor/max_ratio_deviation": (sums.max_ratio_deviation, "max"),
        }
        if self.needs_entropy:
            metrics["actor/entropy_loss"] = (sums.entropy, "sum")
        if config.use_kl_loss:
            metrics["actor/kl_loss"] = (sums.kl / num_tokens, "sum")
        metrics["actor/loss"] = (sums.loss.detach(), "sum")
        return sums.loss, metrics

    def _policy_inputs(self, logprobs_N: Tensor, inputs: LossInputs) -> PolicyLossInputs:
        config = self.config
        return PolicyLossInputs(
            logprobs=logprobs_N.float(),
            old_logprobs=logprobs_N.detach().float() if inputs.old_logprobs_N is None else inputs.old_logprobs_N,
            advantages=inputs.advantages_N,
            mask=torch.ones_like(logprobs_N, dtype=torch.bool),
            segment_ids=inputs.samples_N,
            num_segments=inputs.num_samples,
            clip_low=config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low,
            clip_high=config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high,
            clip_c=config.clip_ratio_c,
        )


class ValueLoss:
    """``value_loss_coef * sum_t w_t max(squared error, squared error of the bounded step)``."""

    needs_entropy = False
    is_separable = True

    def __init__(self, config: CriticConfig) -> None:
        self.config = config

    def __call__(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs) -> tuple[Tensor, PartialMetrics]:
        """See :class:`LossFunction`; ``outputs_N`` are values."""
        mask_N = torch.ones_like(outputs_N, dtype=torch.bool)
        error_N, clipped_N = clipped_value_loss(
            outputs_N, inputs.values_N, inputs.returns_N, mask_N, self.config.cliprange_value
        )
        loss = self.config.value_loss_coef * _weighted(error_N, inputs)
        return loss, {
            "critic/vf_loss": (loss.detach(), "sum"),
            "critic/vf_clipfrac": _mean(clipped_N.float(), inputs),
            "critic/vpred_mean": _mean(outputs_N, inputs),
        }


class SupervisedLoss:
    """Negative log-likelihood, ``-sum_t w_t log pi(t)``."""

    needs_entropy = False
    is_separable = True

    def __call__(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs) -> tuple[Tensor, PartialMetrics]:
        """See :class:`LossFunction`; ``outputs_N`` are log-probs."""
        loss = -_weighted(outputs_N, inputs)
        return loss, {"sft/loss": (loss.detach(), "sum"), "sft/nll_per_token": _mean(-outputs_N, inputs)}


def add_up(parts: Sequence[PartialMetrics]) -> PartialMetrics:
    """Metrics of several slices as those of their union; all have the same names."""
    joined: PartialMetrics = {}
    for name, (_, kind) in parts[0].items():
        values = torch.stack([part[name][0].reshape(()) for part in parts])
        joined[name] = (values.sum() if kind == "sum" else values.amax(), kind)
    return joined


def _policy_metrics(loss: Tensor, policy: PolicyLossInputs, terms: PolicyLossTerms, inputs: LossInputs) -> PartialMetrics:
    log_ratio_N = policy.log_ratio.detach()
    deviation_N = torch.expm1(log_ratio_N).abs()
    return {
        "actor/pg_loss": (loss.detach(), "sum"),
        "actor/pg_clipfrac": _mean(terms.clipped.float(), inputs),
        "actor/pg_clipfrac_lower": _mean(terms.clipped_lower.float(), inputs),
        "actor/ppo_kl": _mean(-log_ratio_N, inputs),
        "actor/max_ratio_deviation": (torch.cat([deviation_N, deviation_N.new_zeros(1)]).max(), "max"),
    }


def _weighted(x_N: Tensor, inputs: LossInputs) -> Tensor:
    """``sum_t w_t x_t``; a zero that still has a graph where there is no token."""
    return (x_N.float() * inputs.loss_weights_N).sum()


def _mean(x_N: Tensor, inputs: LossInputs) -> tuple[Tensor, Reduction]:
    """These tokens' share of the mean over the mini-batch's response tokens."""
    return x_N.detach().float().sum() / max(inputs.num_response_tokens, 1), "sum"
