"""Group statistics by explicit id."""

from __future__ import annotations

import torch

from megatron_rl.algorithms.group_stats import group_stats


def stats(rewards, groups, valid=None):
    return group_stats(
        torch.tensor(rewards), torch.tensor(groups), torch.ones(len(rewards)).bool() if valid is None else torch.tensor(valid)
    )


def test_group_stats_matches_hand_computed():
    result = stats([1.0, 2.0, 3.0], [0, 1, 0])
    torch.testing.assert_close(result.mean_B, torch.tensor([2.0, 2.0, 2.0]).double())
    torch.testing.assert_close(result.std_B, torch.tensor([2**0.5, 0.0, 2**0.5]).double())
    assert result.count_B.tolist() == [2, 1, 2]
    assert result.informative_B.tolist() == [True, False, True]
    assert (result.num_groups, result.num_zero_variance_groups, result.zero_variance_frac) == (2, 0, 0.0)


def test_group_stats_ignores_invalid_samples():
    result = stats([1.0, float("nan"), 0.0, float("inf")], [5, 5, 5, -2], [True, False, True, False])
    assert result.mean_B.tolist() == [0.5, 0.5, 0.5, 0.0]
    assert result.informative_B.tolist() == [True, False, True, False]
    assert result.num_groups == 1


def test_group_stats_of_nothing_is_empty():
    result = stats([], [])
    assert result.zero_variance_frac == 0.0 and result.mean_B.shape == (0,)


def test_zero_variance_frac_leaves_single_samples_out():
    assert stats([1.0, 1.0, 0.0, 1.0], [0, 0, 1, 1]).zero_variance_frac == 0.5
    assert stats([1.0, 0.0], [0, 1]).zero_variance_frac == 0.0
