"""The critic's loss per token."""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_rl.algorithms.masked_stats import keep


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Squared error whose step away from the old value is bounded (Schulman et al. 2017 code; Engstrom et al. 2020).

    ``max((V - G)^2, (V_old + clip(V - V_old, -clip, clip) - G)^2)`` on each token; no factor one half.

    Args:
        values: V, float, any shape; gradients flow.
        old_values: values before the update.
        returns: G, the targets.
        mask: bool; everything outside is ignored.
        clip: largest useful change of a value, 0 = unbounded.

    Returns:
        ``(loss, clipped)``: f32 loss, 0 outside the mask; bool, the tokens where the bound is active.
    """
    values, old_values, returns = (keep(x.float(), mask) for x in (values, old_values, returns))
    error = (values - returns).square()
    if clip == 0:
        return error, torch.zeros_like(mask)
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    bounded_error = (bounded - returns).square()
    return torch.maximum(error, bounded_error), bounded_error > error
