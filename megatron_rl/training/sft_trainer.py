"""Supervised fine-tuning with the same role, packing and optimizer as the RL update.

Shape suffixes: B samples, S padded tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megatron_rl.algorithms.loss_weights import loss_weights
from megatron_rl.data.sft_pairs import SftExample
from megatron_rl.training.loss_closures import SupervisedLoss
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.types.batches import MiniBatch
from megatron_rl.types.masks import response_mask
from megatron_rl.types.metrics import Metrics


def sft_mini_batch(examples: Sequence[SftExample]) -> MiniBatch:
    """Pad examples into one optimizer step with a token-mean loss on the responses."""
    prompt_lengths_B = torch.tensor([example.prompt_length for example in examples])
    response_lengths_B = torch.tensor([example.response_length for example in examples])
    max_len = max(len(example.token_ids) for example in examples)
    tokens_BS = torch.zeros(len(examples), max_len, dtype=torch.int64)
    for b, example in enumerate(examples):
        tokens_BS[b, : len(example.token_ids)] = torch.tensor(example.token_ids)
    mask_BS = response_mask(prompt_lengths_B, response_lengths_B, max_len)
    unused_BS = torch.zeros(()).expand(len(examples), max_len)
    return MiniBatch(
        tokens_BS=tokens_BS,
        prompt_lengths_B=prompt_lengths_B,
        response_lengths_B=response_lengths_B,
        response_mask_BS=mask_BS,
        loss_weights_BS=loss_weights(mask_BS, "token-mean"),
        old_logprobs_BS=unused_BS,
        ref_logprobs_BS=unused_BS,
        values_BS=unused_BS,
        advantages_BS=unused_BS,
        returns_BS=unused_BS,
        importance_weights_BS=unused_BS,
        num_response_tokens=int(mask_BS.sum()),
    )


class SftTrainer:
    """Takes supervised steps on one role."""

    def __init__(self, role: MegatronRole) -> None:
        """Train ``role``, which has a language-model head."""
        self._role = role
        self._loss = SupervisedLoss()

    def step(self, examples: Sequence[SftExample]) -> Metrics:
        """One optimizer step; enters the role's collectives."""
        return self._role.update(sft_mini_batch(examples), self._loss)
