"""A linear recurrence that runs backwards in time.

Shape suffixes: B samples, S tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def reverse_scan(decay_BS: Tensor, input_BS: Tensor) -> Tensor:
    """Solve ``y[s] = x[s] + a[s] * y[s+1]`` for s in [0, S-1], with ``y[S] = 0``.

    A cell with ``a = 1, x = 0`` hands its successor's result through unchanged; that is how gaps in a response mask
    neither discount nor block. On a CPU, token by token over all samples; elsewhere by recursive doubling.

    Args:
        decay_BS: a, float64 ``[B, S]``.
        input_BS: x, float64 ``[B, S]``, finite.

    Returns:
        y, float64 ``[B, S]``.
    """
    return _token_by_token(decay_BS, input_BS) if input_BS.device.type == "cpu" else _doubling(decay_BS, input_BS)


def _token_by_token(decay_BS: Tensor, input_BS: Tensor) -> Tensor:
    """Least arithmetic: S steps over B samples, which lie side by side in memory."""
    decay_SB, result_SB = decay_BS.t().contiguous(), input_BS.t().clone(memory_format=torch.contiguous_format)
    for s in range(input_BS.shape[1] - 2, -1, -1):
        result_SB[s].addcmul_(decay_SB[s], result_SB[s + 1])
    return result_SB.t().contiguous()


def _doubling(decay_BS: Tensor, input_BS: Tensor) -> Tensor:
    """Recursive doubling (Hillis and Steele 1986): after round k each cell covers 2^k steps, so log2(S) rounds do."""
    decay, result = decay_BS, input_BS
    reach = 1
    while reach < input_BS.shape[1]:
        result = result + decay * pad(result[:, reach:], (0, reach))
        decay = decay * pad(decay[:, reach:], (0, reach))
        reach *= 2
    return result
