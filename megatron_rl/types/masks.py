"""The response mask, and the one-token shift of a padded batch (``data.packing`` shifts packed ones).

Shape suffixes: B samples, S padded tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor


def response_mask(prompt_lengths_B: Tensor, response_lengths_B: Tensor, max_len: int) -> Tensor:
    """Mark the response tokens.

    Built from lengths, never from ``token != pad``: pad may equal EOS, and the final EOS counts.

    Returns bool ``[B, max_len]``, True at ``prompt_len <= s < prompt_len + response_len``.
    """
    positions_S = torch.arange(max_len, device=prompt_lengths_B.device)
    start_B1 = prompt_lengths_B[:, None]
    return (positions_S >= start_B1) & (positions_S < start_B1 + response_lengths_B[:, None])


def last_token(mask_BS: Tensor) -> Tensor:
    """Mark the last counted token of each row; bool ``[B, S]``, all False in a row without one."""
    return mask_BS & (mask_BS.flip(1).cumsum(dim=1).flip(1) == 1)


def to_predicting_position(x_BS: Tensor) -> Tensor:
    """Move token coordinates to the position whose hidden state predicts the token: ``y[b, s] = x[b, s + 1]``."""
    return torch.nn.functional.pad(x_BS[:, 1:], (0, 1))
