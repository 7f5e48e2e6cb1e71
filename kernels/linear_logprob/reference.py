"""Specification: the whole logit matrix, plain autograd, one rank.

Shape suffixes: N positions, V vocabulary, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor


def linear_logprob_reference(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """``log softmax(hidden @ weight^T / temperature)`` at each target, and the entropy of each row.

    Computes in f64 for f64 inputs, else in f32.

    Args:
        hidden_NH: last hidden states.
        weight_VH: LM head without padded rows.
        targets_N: i64 in ``[0, V)``.
        temperature: divides the logits, > 0.

    Returns ``logprobs [N]`` and ``entropy [N]``, nats.
    """
    dtype = torch.promote_types(hidden_NH.dtype, torch.float32)
    logits_NV = hidden_NH.to(dtype) @ weight_VH.to(dtype).T / temperature
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV.gather(-1, targets_N[:, None])[:, 0], entropy_N
