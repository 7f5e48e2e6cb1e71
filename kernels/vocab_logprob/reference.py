"""Specification of the LM-head log-probability: the whole logit matrix, plain autograd, one rank.

Shape suffixes: N positions, V vocabulary, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor


def vocab_logprob_reference(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, ``softmax(hidden @ weight^T / temperature)``.

    Args:
        hidden_NH: last hidden states.
        weight_VH: LM head without padded rows.
        targets_N: i64 in ``[0, V)``.
        temperature: divides the logits, > 0.

    Returns ``logprobs [N]`` and ``entropy [N]``, f32, nats.
    """
    logits_NV = hidden_NH.float() @ weight_VH.float().T / temperature
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV.gather(-1, targets_N[:, None])[:, 0], entropy_N
