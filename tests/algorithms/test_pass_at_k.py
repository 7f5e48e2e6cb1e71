"""The unbiased pass@k."""

from __future__ import annotations

from itertools import combinations

import pytest

from megatron_rl.algorithms.pass_at_k import pass_at_k, powers_of_two


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 1), (4, 1, 2), (4, 3, 2), (5, 2, 3), (4, 0, 4), (4, 4, 1)])
def test_pass_at_k_matches_reference(n, c, k):
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_many_samples_is_exact():
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)


@pytest.mark.parametrize(("limit", "expected"), [(1, [1]), (6, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_powers_of_two_matches_hand_computed(limit, expected):
    assert powers_of_two(limit) == expected
