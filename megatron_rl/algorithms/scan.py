"""A linear recurrence that runs backwards in time, without a loop over tokens.

Shape suffixes: B samples, S tokens.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad


def reverse_scan(decay_BS: Tensor, input_BS: Tensor) -> Tensor:
    """Solve ``y[s] = x[s] + a[s] * y[s+1]`` for s in [0, S-1], with ``y[S] = 0``.

    Recursive doubling (Hillis and Steele 1986): after round k each cell covers 2^k steps, so S tokens take log2(S)
    rounds over the whole tensor. A cell with ``a = 1, x = 0`` hands its successor's result through unchanged; that is
    how gaps in a response mask neither discount nor block.

    Args:
        decay_BS: a, float64 ``[B, S]``.
        input_BS: x, float64 ``[B, S]``, finite.

    Returns:
        y, float64 ``[B, S]``.
    """
    decay, result = decay_BS, input_BS
    reach = 1
    while reach < input_BS.shape[1]:
        result = result + decay * pad(result[:, reach:], (0, reach))
        decay = decay * pad(decay[:, reach:], (0, reach))
        reach *= 2
    return result
