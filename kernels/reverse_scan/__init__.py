"""Recurrences that run backwards in time: discounted returns and generalised advantage estimation.

Rows are independent. Packed sequences lie in one row and end where ``ends`` is True; a padded batch has one per row.
Cells outside the mask may hold anything, NaN included. Shape suffixes: B rows, T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import SINGLE_AND_DOUBLE, runs_on_triton, unsupported
from kernels.reverse_scan.reference import discounted_returns_reference, gae_reference, reverse_scan_reference

__all__ = [
    "discounted_returns",
    "discounted_returns_reference",
    "gae",
    "gae_reference",
    "reverse_scan",
    "reverse_scan_reference",
]


def reverse_scan(decay_BT: Tensor, input_BT: Tensor) -> Tensor:
    """Solve ``y[t] = x[t] + a[t] y[t + 1]`` with ``y[T] = 0``; arithmetic in f64 on CUDA.

    Args:
        decay_BT: a, f32 or f64; 0 starts anew, so packed sequences have a 0 on their last token.
        input_BT: x, f32 or f64, finite.

    Returns y, dtype of ``input_BT``. Raises ValueError on CUDA for another dtype or unequal shapes.
    """
    if not _checked(decay_BT, input_BT):
        return reverse_scan_reference(decay_BT, input_BT)
    from kernels.reverse_scan.triton import reverse_scan_triton

    return reverse_scan_triton(decay_BT, input_BT)


def discounted_returns(rewards_BT: Tensor, mask_BT: Tensor, ends_BT: Tensor, gamma: float) -> Tensor:
    """``G = r + gamma G'`` over counted tokens, 0 elsewhere; uncounted tokens neither discount nor block.

    Args:
        rewards_BT: f32 or f64.
        mask_BT: bool, tokens that count.
        ends_BT: bool, last token of each sequence.
        gamma: discount per counted token.
    """
    if not _checked(rewards_BT, rewards_BT, mask_BT, ends_BT):
        return discounted_returns_reference(rewards_BT, mask_BT, ends_BT, gamma)
    decay_BT = torch.ones_like(rewards_BT, dtype=torch.float64).masked_fill_(mask_BT, gamma).masked_fill_(ends_BT, 0.0)
    return reverse_scan(decay_BT, rewards_BT.masked_fill(~mask_BT, 0.0)).masked_fill_(~mask_BT, 0.0)


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, ends_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of generalised advantage estimation (Schulman et al. 2016, eq. 16), not whitened.

    Args:
        rewards_BT: f32 or f64.
        values_BT: the critic's, same dtype.
        mask_BT: bool, tokens that count.
        ends_BT: bool, last token of each sequence.
        gamma: discount per counted token.
        lam: the estimator's lambda.

    Returns ``(advantages, returns)``, dtype of ``rewards_BT``, 0 outside the mask.
    """
    if not _checked(rewards_BT, values_BT, mask_BT, ends_BT):
        return gae_reference(rewards_BT, values_BT, mask_BT, ends_BT, gamma, lam)
    from kernels.reverse_scan.triton import gae_triton

    return gae_triton(rewards_BT, values_BT, mask_BT, ends_BT, gamma, lam)


def _checked(first_BT: Tensor, second_BT: Tensor, *flags_BT: Tensor) -> bool:
    fast = runs_on_triton("reverse_scan", SINGLE_AND_DOUBLE, first_BT, second_BT, beside=flags_BT)
    shapes = {tuple(x.shape) for x in (first_BT, second_BT, *flags_BT)}
    if len(shapes) > 1 or first_BT.dim() != 2:
        raise unsupported("reverse_scan", f"shapes {sorted(shapes)}, only equal [B, T]")
    if any(x.dtype != torch.bool for x in flags_BT):
        raise unsupported("reverse_scan", "masks that are not torch.bool")
    return fast
