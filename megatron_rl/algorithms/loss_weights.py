"""The factor of each token in the loss sum.

Every average over a mini-batch is ``sum(weights * token_loss)`` with weights made once, from the mask of the *whole*
mini-batch. However that sum is then cut, over micro-batches, pipeline slots or data-parallel ranks, it adds up to the
same loss.

Shape suffixes: B samples, S padded tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_rl.config.training import LossAggMode


def loss_weights(mask_BS: Tensor, mode: LossAggMode, norm_length: int | None = None) -> Tensor:
    """Weights of ``mode`` over the global mini-batch.

    With N response tokens in all, M samples that have any, and n_b of them in sample b, a response token weighs

    * ``token-mean``: 1 / N
    * ``token-sum``: 1
    * ``seq-mean-token-sum``: 1 / M
    * ``seq-mean-token-mean``: 1 / (M n_b)
    * ``seq-mean-token-sum-norm``: 1 / (M L), L = ``norm_length``, a constant (Liu et al. 2025, arXiv 2503.20783)

    Args:
        mask_BS: bool ``[B, S]``, all samples of the mini-batch.
        mode: ``actor.loss_agg_mode`` or ``critic.loss_agg_mode``.
        norm_length: ``data.max_response_length``, needed by ``seq-mean-token-sum-norm``; never the padded width, which
            depends on the batch.

    Returns:
        f32 ``[B, S]``, 0 outside the mask; all zeros, never NaN, for a batch without response tokens.
    """
    lengths_B1 = mask_BS.sum(dim=1, keepdim=True).double()
    num_tokens = lengths_B1.sum().clamp(min=1)
    num_samples = (lengths_B1 > 0).sum().clamp(min=1).double()
    if mode == "token-mean":
        weight = 1 / num_tokens
    elif mode == "token-sum":
        weight = torch.ones_like(num_tokens)
    elif mode == "seq-mean-token-sum":
        weight = 1 / num_samples
    elif mode == "seq-mean-token-mean":
        weight = 1 / (num_samples * lengths_B1.clamp(min=1))
    else:
        assert norm_length is not None, "seq-mean-token-sum-norm needs norm_length"
        weight = 1 / (num_samples * norm_length)
    return (mask_BS * weight).float()
