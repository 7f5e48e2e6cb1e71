"""Specification of the backward recurrences: one loop over tokens, from the last to the first.

Rows are independent. Packed sequences lie in one row and end where ``ends`` is True; a padded batch has one per row.
Shape suffixes: B rows, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reverse_scan_reference(decay_BT: Tensor, input_BT: Tensor) -> Tensor:
    """``y[t] = x[t] + a[t] y[t + 1]`` with ``y[T] = 0``; a zero in ``a`` starts anew."""
    output_BT = torch.zeros_like(input_BT)
    carry_B = input_BT.new_zeros(input_BT.shape[0])
    for t in reversed(range(input_BT.shape[1])):
        carry_B = input_BT[:, t] + decay_BT[:, t] * carry_B
        output_BT[:, t] = carry_B
    return output_BT


def discounted_returns_reference(rewards_BT: Tensor, mask_BT: Tensor, ends_BT: Tensor, gamma: float) -> Tensor:
    """``G = r + gamma G'`` over the counted tokens, G' that of the next counted token before the end; 0 elsewhere."""
    returns_BT = torch.zeros_like(rewards_BT)
    carry_B = rewards_BT.new_zeros(rewards_BT.shape[0])
    for t in reversed(range(rewards_BT.shape[1])):
        carry_B = torch.where(ends_BT[:, t], 0.0, carry_B)
        carry_B = torch.where(mask_BT[:, t], rewards_BT[:, t] + gamma * carry_B, carry_B)
        returns_BT[:, t] = torch.where(mask_BT[:, t], carry_B, 0.0)
    return returns_BT


def gae_reference(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, ends_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """``delta = r + gamma V' - V``, ``A = delta + gamma lam A'``, return ``A + V`` (Schulman et al. 2016, eq. 16).

    V' and A' are those of the next counted token, 0 behind the last one before an end. Both results 0 elsewhere.
    """
    advantages_BT, returns_BT = torch.zeros_like(rewards_BT), torch.zeros_like(rewards_BT)
    advantage_B = next_value_B = rewards_BT.new_zeros(rewards_BT.shape[0])
    for t in reversed(range(rewards_BT.shape[1])):
        counted_B = mask_BT[:, t]
        advantage_B = torch.where(ends_BT[:, t], 0.0, advantage_B)
        next_value_B = torch.where(ends_BT[:, t], 0.0, next_value_B)
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = torch.where(counted_B, delta_B + gamma * lam * advantage_B, advantage_B)
        next_value_B = torch.where(counted_B, values_BT[:, t], next_value_B)
        advantages_BT[:, t] = torch.where(counted_B, advantage_B, 0.0)
        returns_BT[:, t] = torch.where(counted_B, advantage_B + values_BT[:, t], 0.0)
    return advantages_BT, returns_BT
