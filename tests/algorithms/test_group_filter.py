"""Which groups are trained on."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.algorithms.group_filter import candidate_groups, choose_groups, differing_groups

GROUPS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize(
    ("metric", "rewards", "counted", "differs"),
    [
        ("seq_reward", [0, 1, 1, 1, 0.2, 0.4, 0, 0], [1] * 8, [True, False, True, False]),
        ("acc", [0, 1, 1, 1, 0.2, 0.4, 0.5, 0.6], [1] * 8, [True, False, False, True]),
        ("seq_reward", [0, 1, 1, 0, 0, 0, 0, 9], [1, 0, 0, 0, 1, 1, 1, 1], [False, False, False, True]),
        ("seq_reward", [0, float("nan"), 1, 0, 0, 0, 1, 1 + 1e-7], [1, 0, 1, 1, 1, 1, 1, 1], [False, True, False, False]),
    ],
    ids=["reward", "acc_needs_right_and_wrong", "masked_and_empty_answers_do_not_differ", "nan_and_rounding"],
)
def test_differing_groups_matches_hand_computed(metric, rewards, counted, differs) -> None:
    found = differing_groups(metric, torch.tensor(rewards), GROUPS, torch.tensor(counted, dtype=torch.bool))
    assert found.tolist() == differs


@pytest.mark.parametrize(
    ("differs", "chosen"),
    [
        ([1, 1, 1, 0], [0, 1]),
        ([0, 1, 0, 1, 1], [1, 3]),
        ([0, 0, 1], [0, 2]),
        ([0, 0, 0], [0, 1]),
    ],
    ids=["first_ones", "skips", "filled_up_in_order", "all_equal"],
)
def test_choose_groups_matches_hand_computed(differs, chosen) -> None:
    assert choose_groups([bool(d) for d in differs], 2) == chosen


def test_candidate_groups_are_enough_to_choose_from() -> None:
    whole = [bool(int(digit)) for digit in "0001011011"]
    assert candidate_groups(whole, 2) == [0, 1, 3, 5]
    for cut in range(2, len(whole)):
        kept = candidate_groups(whole[:cut], 2)
        rest = [*kept, *range(cut, len(whole))]
        chosen = choose_groups([whole[group] for group in rest], 2)
        assert [rest[i] for i in chosen] == choose_groups(whole, 2)
