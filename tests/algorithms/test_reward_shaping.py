"""Token rewards."""

from __future__ import annotations

import torch

from megatron_rl.algorithms.reward_shaping import token_rewards


def test_token_rewards_matches_hand_computed():
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]]).bool()
    kl = torch.tensor([[9.0, 0.1, 0.2, torch.nan], [0.5, 9, 1.0, 9], [torch.nan, 1, 1, 1]])
    shaped = token_rewards(torch.tensor([1.0, -2.0, torch.nan]), kl, mask, 0.5)
    torch.testing.assert_close(shaped, torch.tensor([[0, -0.05, 0.9, 0], [-0.25, 0, -2.5, 0], [0, 0, 0, 0]]))


def test_token_rewards_without_penalty_keeps_the_sequence_reward():
    mask = torch.tensor([[1, 1, 0]]).bool()
    assert token_rewards(torch.tensor([3.0]), torch.full((1, 3), torch.nan), ~mask & mask, 0.0).sum() == 0
    assert token_rewards(torch.tensor([3.0]), torch.zeros(1, 3), mask, 0.0).tolist() == [[0, 3, 0]]
