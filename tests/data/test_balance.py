"""Balanced partitions: published values, and the properties they must have for any sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatron_rl.data.balance import balanced_partition

_LENGTHS = [100, 900, 300, 700, 500, 200, 800, 400]


def test_balanced_partition_matches_reference() -> None:
    assert balanced_partition(_LENGTHS, 2, equal_counts=True) == [[2, 3, 5, 6], [0, 1, 4, 7]]
    assert balanced_partition(_LENGTHS, 4, equal_counts=True) == [[5, 6], [2, 3], [0, 1], [4, 7]]


def test_balanced_partition_matches_hand_computed() -> None:
    assert balanced_partition([1, 2, 3, 4], 2) == [[0, 3], [1, 2]]
    assert balanced_partition([5], 3) == [[0], [], []]
    assert balanced_partition([], 2) == [[], []]


@given(st.lists(st.integers(1, 10_000), max_size=40), st.integers(1, 9))
def test_balanced_partition_uses_each_item_once(sizes: list[int], num_parts: int) -> None:
    parts = balanced_partition(sizes, num_parts)
    assert len(parts) == num_parts
    assert sorted(item for part in parts for item in part) == list(range(len(sizes)))
    sums = [sum(sizes[item] for item in part) for part in parts]
    assert sums == sorted(sums, reverse=True)
    assert max(sums) - min(sums) <= max(sizes, default=0)
