"""Statistics of the sequence rewards within each prompt's group of samples.

Shape suffixes: B samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_EQUAL_ULPS = 4.0
"""Rewards this close (float32 units in the last place of the largest) are equal: their difference is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """What each sample knows of its group, float64 ``[B]``; only valid samples are counted."""

    mean_B: Tensor
    """Mean of the group; 0 where it has no valid sample."""
    std_B: Tensor
    """Standard deviation with Bessel's correction; 0 for fewer than two valid samples."""
    count_B: Tensor
    """Valid samples."""
    informative_B: Tensor
    """bool: the sample is valid and its group has two or more valid samples whose rewards are not all equal."""
    num_groups: int
    """Groups with a valid sample."""
    num_zero_variance_groups: int
    """Those with two or more valid samples whose rewards are all equal."""

    @property
    def zero_variance_frac(self) -> float:
        """Share of groups with all rewards equal; single samples, as PPO draws them, are not such groups."""
        return self.num_zero_variance_groups / max(self.num_groups, 1)


def group_stats(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor, weights_B: Tensor | None = None) -> GroupStats:
    """Reduce rewards by explicit group id (any integers, any row order).

    Works on the host in float64: B numbers in a fixed order, so all ranks get the same bits (atomic adds would not).

    Args:
        rewards_B: sequence rewards ``[B]``; anything, NaN included, where ``valid_B`` is False.
        group_ids_B: i64 ``[B]``.
        valid_B: bool ``[B]``.
        weights_B: weights of the mean ``[B]``, positive where valid; None = equal.

    Syncs: copies three ``[B]`` tensors to the host.
    """
    device = rewards_B.device
    valid = valid_B.cpu()
    rewards = torch.where(valid, rewards_B.detach().cpu().double(), torch.zeros((), dtype=torch.float64))
    groups, index = torch.unique(group_ids_B.cpu(), return_inverse=True)

    def per_group(values: Tensor) -> Tensor:
        return torch.zeros(len(groups), dtype=torch.float64).index_add(0, index, values)

    ones = valid.double()
    weights = ones if weights_B is None else ones * weights_B.cpu().double()
    count = per_group(ones)
    mean = per_group(weights * rewards) / per_group(weights).clamp(min=torch.finfo(torch.float64).tiny)
    centre = per_group(rewards) / count.clamp(min=1)
    std = (per_group(ones * (rewards - centre[index]).square()) / (count - 1).clamp(min=1)).sqrt()
    informative = (count >= 2) & (_spread(rewards, valid, index, len(groups)) > 0)
    return GroupStats(
        mean_B=mean[index].to(device),
        std_B=std[index].to(device),
        count_B=count[index].to(device),
        informative_B=(informative[index] & valid).to(device),
        num_groups=int((count > 0).sum()),
        num_zero_variance_groups=int(((count >= 2) & ~informative).sum()),
    )


def _spread(rewards: Tensor, valid: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """Largest minus smallest valid reward of each group, 0 where that is rounding."""
    infinity = torch.full((num_groups,), torch.inf, dtype=torch.float64)
    high = (-infinity).scatter_reduce(0, index, torch.where(valid, rewards, -torch.inf), "amax")
    low = infinity.scatter_reduce(0, index, torch.where(valid, rewards, torch.inf), "amin")
    tolerance = _EQUAL_ULPS * torch.finfo(torch.float32).eps * torch.maximum(high.abs(), low.abs())
    spread = high - low
    return torch.where(spread > tolerance, spread, torch.zeros_like(spread))
