"""Joins the running statistics of the ranks a vocabulary is cut over.

Statistics are f32 ``[4, N]`` over the logits a rank has seen: the maximum m, ``sum exp(x - m)``,
``sum exp(x - m) (x - m)`` and the target's logit (0 where another rank has it). N positions, W ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class RowStats:
    """What the gradient of a row of logits needs besides the logits."""

    logprobs_N: Tensor
    """f32, log-probability of the target."""
    entropy_N: Tensor
    """f32, nats; meaningless unless the moment was kept."""
    log_total_N: Tensor
    """f32, logarithm of the partition sum."""


def combine(stats_4N: Tensor, group: ProcessGroup | None) -> RowStats:
    """Statistics over the whole vocabulary, bit for bit the same on every rank.

    Collectives: one all-gather of ``16 N`` bytes over ``group``; none if it is None.
    """
    if group is None:
        return join(stats_4N[None])
    num_positions = stats_4N.shape[1]
    stats_W4N = torch.empty(dist.get_world_size(group), 4, num_positions, dtype=stats_4N.dtype, device=stats_4N.device)
    dist.all_gather_into_tensor(stats_W4N.view(-1, num_positions), stats_4N.contiguous(), group=group)
    return join(stats_W4N)


def join(stats_W4N: Tensor) -> RowStats:
    """Add up the statistics of disjoint parts of the vocabulary."""
    top_WN, total_WN, moment_WN, picked_WN = stats_W4N.unbind(1)
    top_N = top_WN.amax(0)
    lag_WN = top_WN - top_N
    decay_WN = lag_WN.exp()
    total_N = (decay_WN * total_WN).sum(0)
    moment_N = (decay_WN * (moment_WN + total_WN * lag_WN)).sum(0)
    log_sum_N = total_N.log()
    # Relative to the maximum, so that two large numbers never cancel.
    logprobs_N = (picked_WN.sum(0) - top_N) - log_sum_N
    return RowStats(logprobs_N, log_sum_N - moment_N / total_N, top_N + log_sum_N)
