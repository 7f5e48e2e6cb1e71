"""Cutting an experience into mini-batches: one optimizer step each, denominators known before any forward."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megatron_rl.algorithms.loss_weights import loss_weights
from megatron_rl.config.training import LossAggMode
from megatron_rl.types.batches import Experience, MiniBatch


def select_rows(experience: Experience, rows_B: Tensor, loss_agg_mode: LossAggMode, max_response_length: int) -> MiniBatch:
    """Take rows of an experience as one optimizer step, weighted by that step's own global counts.

    Args:
        experience: all samples of the RL step.
        rows_B: i64, rows of the mini-batch, the same on every rank.
        loss_agg_mode: how token losses are averaged.
        max_response_length: response budget, tokens; the denominator of ``seq-mean-token-sum-norm``.
    """
    rollouts = experience.rollouts
    mask_BS = experience.response_mask_BS[rows_B]
    return MiniBatch(
        tokens_BS=rollouts.tokens_BS[rows_B],
        prompt_lengths_B=rollouts.prompt_lengths_B[rows_B],
        response_lengths_B=rollouts.response_lengths_B[rows_B],
        response_mask_BS=mask_BS,
        loss_weights_BS=loss_weights(mask_BS, loss_agg_mode, max_response_length),
        old_logprobs_BS=None if experience.old_logprobs_BS is None else experience.old_logprobs_BS[rows_B],
        ref_logprobs_BS=None if experience.ref_logprobs_BS is None else experience.ref_logprobs_BS[rows_B],
        values_BS=experience.values_BS[rows_B],
        advantages_BS=experience.advantages_BS[rows_B],
        returns_BS=experience.returns_BS[rows_B],
        importance_weights_BS=experience.importance_weights_BS[rows_B],
        num_response_tokens=int(mask_BS.sum()),
    )


def mini_batches(
    experience: Experience,
    *,
    samples_per_batch: int | None,
    epochs: int,
    shuffle: bool,
    loss_agg_mode: LossAggMode,
    max_response_length: int,
    seed: int,
) -> Iterator[MiniBatch]:
    """Yield the mini-batches of every pass, in the same order on every rank.

    Args:
        experience: all samples of the RL step.
        samples_per_batch: samples of one optimizer step; None = all.
        epochs: passes over the samples.
        shuffle: a new order each pass; otherwise (and where one mini-batch holds all) the rollout order, which keeps
            groups together.
        loss_agg_mode: how token losses are averaged.
        max_response_length: response budget, tokens.
        seed: of the order; the pass number is added.
    """
    num_samples = experience.rewards_B.numel()
    size = num_samples if samples_per_batch is None else samples_per_batch
    device = experience.rewards_B.device
    for epoch in range(epochs):
        order_B = torch.arange(num_samples)
        if shuffle and size < num_samples:
            order_B = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed + epoch))
        for rows_B in torch.split(order_B.to(device), size):
            yield select_rows(experience, rows_B, loss_agg_mode, max_response_length)
