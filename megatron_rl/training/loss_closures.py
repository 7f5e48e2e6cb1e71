"""The scalar each micro-batch adds to the loss of its mini-batch.

A loss is a sum over tokens with the mini-batch's weights, and so is every metric over ``num_response_tokens`` of the
whole mini-batch: both add up over micro-batches and data-parallel ranks to the same number however the batch was cut.

Shape suffixes: T packed tokens at the predicting position (types/batches.py).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from megatron_rl.algorithms.kl import kl_penalty
from megatron_rl.algorithms.masked_stats import keep
from megatron_rl.algorithms.policy_loss import POLICY_LOSSES, PolicyLossInputs, PolicyLossTerms
from megatron_rl.algorithms.value_loss import clipped_value_loss
from megatron_rl.config.training import ActorConfig, CriticConfig
from megatron_rl.types.batches import MicroBatch, PackedTokens
from megatron_rl.types.metrics import Reduction

PartialMetrics = dict[str, tuple[Tensor, Reduction]]
"""Detached scalars; ``sum`` or ``max`` over micro-batches and data-parallel ranks gives the logged number."""


class LossFunction(Protocol):
    """What the training role calls on the last pipeline stage."""

    needs_entropy: bool
    """Whether ``entropy_T`` is wanted; without it no entropy graph is built."""

    def __call__(self, outputs_T: Tensor, entropy_T: Tensor | None, batch: MicroBatch) -> tuple[Tensor, PartialMetrics]:
        """Return this micro-batch's share of the loss (f32 scalar, may be a graph with zero gradient) and metrics.

        Args:
            outputs_T: f32 ``[T]``, log-probs of the next tokens, or values.
            entropy_T: f32 ``[T]``, entropy of the next-token distribution, nats; None unless ``needs_entropy``.
            batch: the packed slice.
        """


class PolicyLoss:
    """Policy-gradient loss, entropy bonus and KL to the reference, all under the same weights.

    ``sum_t w_t (c_t L_t - entropy_coeff H_t + kl_loss_coef KL_t)``, c the rollout importance weights.
    """

    def __init__(self, config: ActorConfig) -> None:
        self.config = config
        self.needs_entropy = config.entropy_coeff != 0.0
        self.token_loss = POLICY_LOSSES[config.policy_loss]

    def __call__(self, outputs_T: Tensor, entropy_T: Tensor | None, batch: MicroBatch) -> tuple[Tensor, PartialMetrics]:
        """See :class:`LossFunction`; ``outputs_T`` are log-probs."""
        mask_T = batch.packed.predicts_T
        inputs = self._inputs(outputs_T, batch)
        terms = self.token_loss(inputs)
        loss = _weighted(terms.loss * keep(batch.importance_weights_T, mask_T), batch)
        metrics = _policy_metrics(loss, inputs, terms, batch)
        if entropy_T is not None and self.needs_entropy:
            entropy = _weighted(entropy_T, batch)
            loss = loss - self.config.entropy_coeff * entropy
            metrics["actor/entropy_loss"] = (entropy.detach(), "sum")
        if self.config.use_kl_loss:
            kl_T = kl_penalty(inputs.clean_logprobs, keep(batch.ref_logprobs_T, mask_T), self.config.kl_loss_type)
            loss = loss + self.config.kl_loss_coef * _weighted(kl_T, batch)
            metrics["actor/kl_loss"] = _mean(kl_T, batch)
        metrics["actor/loss"] = (loss.detach(), "sum")
        return loss, metrics

    def _inputs(self, logprobs_T: Tensor, batch: MicroBatch) -> PolicyLossInputs:
        config = self.config
        return PolicyLossInputs(
            logprobs=logprobs_T.float(),
            old_logprobs=batch.old_logprobs_T,
            advantages=batch.advantages_T,
            mask=batch.packed.predicts_T,
            segment_ids=segment_ids(batch.packed),
            num_segments=len(batch.packed.cu_seqlens) - 1,
            clip_low=config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low,
            clip_high=config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high,
            clip_c=config.clip_ratio_c,
        )


class ValueLoss:
    """``value_loss_coef * sum_t w_t max(squared error, squared error of the bounded step)``."""

    needs_entropy = False

    def __init__(self, config: CriticConfig) -> None:
        self.config = config

    def __call__(self, outputs_T: Tensor, entropy_T: Tensor | None, batch: MicroBatch) -> tuple[Tensor, PartialMetrics]:
        """See :class:`LossFunction`; ``outputs_T`` are values."""
        mask_T = batch.packed.predicts_T
        error_T, clipped_T = clipped_value_loss(outputs_T, batch.values_T, batch.returns_T, mask_T, self.config.cliprange_value)
        loss = self.config.value_loss_coef * _weighted(error_T, batch)
        return loss, {
            "critic/vf_loss": (loss.detach(), "sum"),
            "critic/vf_clipfrac": _mean(clipped_T.float(), batch),
            "critic/vpred_mean": _mean(outputs_T, batch),
        }


class SupervisedLoss:
    """Negative log-likelihood, ``-sum_t w_t log pi(t)``."""

    needs_entropy = False

    def __call__(self, outputs_T: Tensor, entropy_T: Tensor | None, batch: MicroBatch) -> tuple[Tensor, PartialMetrics]:
        """See :class:`LossFunction`; ``outputs_T`` are log-probs."""
        loss = -_weighted(outputs_T, batch)
        return loss, {"sft/loss": (loss.detach(), "sum"), "sft/nll_per_token": _mean(-outputs_T, batch)}


def segment_ids(packed: PackedTokens) -> Tensor:
    """Document of each packed token, i64 ``[T]`` in [0, D)."""
    positions_T = torch.arange(packed.tokens_T.numel(), device=packed.tokens_T.device)
    return torch.bucketize(positions_T, packed.cu_seqlens[1:].to(positions_T.dtype), right=True)


def _policy_metrics(loss: Tensor, inputs: PolicyLossInputs, terms: PolicyLossTerms, batch: MicroBatch) -> PartialMetrics:
    log_ratio_T = inputs.log_ratio.detach()
    deviation_T = torch.expm1(log_ratio_T).abs()
    return {
        "actor/pg_loss": (loss.detach(), "sum"),
        "actor/pg_clipfrac": _mean(terms.clipped.float(), batch),
        "actor/pg_clipfrac_lower": _mean(terms.clipped_lower.float(), batch),
        "actor/ppo_kl": _mean(-log_ratio_T, batch),
        "actor/max_ratio_deviation": (torch.cat([deviation_T, deviation_T.new_zeros(1)]).max(), "max"),
    }


def _weighted(x_T: Tensor, batch: MicroBatch) -> Tensor:
    """``sum_t w_t x_t`` over the response tokens; a zero that still has a graph where there are none."""
    mask_T = batch.packed.predicts_T
    return (keep(x_T.float(), mask_T) * keep(batch.loss_weights_T, mask_T)).sum()


def _mean(x_T: Tensor, batch: MicroBatch) -> tuple[Tensor, Reduction]:
    """This slice's share of the mean over the mini-batch's response tokens."""
    return keep(x_T.detach().float(), batch.packed.predicts_T).sum() / max(batch.num_response_tokens, 1), "sum"
