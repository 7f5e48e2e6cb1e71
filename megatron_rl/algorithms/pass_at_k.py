"""The chance that at least one of k samples is right."""

from __future__ import annotations

import math

RIGHT_ABOVE = 0.5
"""A sample is right where its reward exceeds this."""


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate from n >= k samples of one prompt, c of them right (Chen et al. 2021, eq. 1; arXiv 2107.03374).

    ``1 - C(n - c, k) / C(n, k)``, in exact integers.
    """
    assert 0 <= num_correct <= num_samples and 1 <= k <= num_samples
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def powers_of_two(limit: int) -> list[int]:
    """The k that validation reports: 1, 2, 4, ... up to ``limit``."""
    return [1 << i for i in range(limit.bit_length())]
