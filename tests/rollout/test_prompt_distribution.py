"""Shares of the engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_rl.rollout.prompt_distribution import distribute_prompts


@pytest.mark.parametrize(
    ("lengths", "num_engines", "expected"),
    [
        pytest.param([5, 1, 1, 5], 2, [[0, 1], [2, 3]], id="long_prompts_apart"),
        pytest.param([1, 2, 3], 2, [[0, 2], [1]], id="odd_count_first_engine_takes_more"),
        pytest.param([4, 4], 4, [[0], [1], [], []], id="more_engines_than_prompts"),
        pytest.param([3, 3, 3], 1, [[0, 1, 2]], id="one_engine_keeps_the_order"),
        pytest.param([], 2, [[], []], id="nothing_to_do"),
    ],
)
def test_distribute_prompts_matches_hand_computed(lengths: list[int], num_engines: int, expected: list[list[int]]) -> None:
    assert distribute_prompts(lengths, num_engines) == expected


@given(st.lists(st.integers(1, 4096), max_size=60), st.integers(1, 9))
def test_distribute_prompts_covers_each_prompt_once_and_balances(lengths: list[int], num_engines: int) -> None:
    shares = distribute_prompts(lengths, num_engines)
    assert sorted(index for share in shares for index in share) == list(range(len(lengths)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    loads = [sum(lengths[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= 2 * max(lengths, default=0)
