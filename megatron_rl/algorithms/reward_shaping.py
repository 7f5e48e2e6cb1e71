"""From one reward per sample to one per token.

Shape suffixes: B samples, S padded tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_rl.algorithms.masked_stats import keep
from megatron_rl.types.masks import last_token


def token_rewards(rewards_B: Tensor, kl_BS: Tensor, mask_BS: Tensor, kl_coef: float) -> Tensor:
    """Put the sequence reward on the last response token and charge each token its KL (Ouyang et al. 2022, sec. 3.5).

    ``r_t = [t = T] * R - kl_coef * kl_t`` for t in [1, T] over the response tokens.

    Args:
        rewards_B: sequence rewards ``[B]``; not read for rows without response tokens.
        kl_BS: KL of each token ``[B, S]``, nats (kl.py); zeros where there is no penalty.
        mask_BS: bool ``[B, S]``.
        kl_coef: coefficient, 0 = no penalty.

    Returns:
        f32 ``[B, S]``, 0 outside the mask.
    """
    ends_BS = last_token(mask_BS)
    outcome_BS = torch.where(ends_BS, rewards_B.float()[:, None], torch.zeros((), device=rewards_B.device))
    return outcome_BS - kl_coef * keep(kl_BS.float(), mask_BS)
