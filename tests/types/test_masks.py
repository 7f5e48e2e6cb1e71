"""Response mask and token shift."""

from __future__ import annotations

import torch

from megatron_rl.types.masks import last_token, response_mask, to_predicting_position


def test_response_mask_matches_hand_computed():
    mask = response_mask(torch.tensor([1, 2, 3]), torch.tensor([2, 0, 1]), 4)
    assert mask.int().tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


def test_last_token_matches_hand_computed():
    mask = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    assert last_token(mask).int().tolist() == [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]


def test_token_shift_roundtrips():
    x = torch.tensor([[0.0, 2, 3]])
    assert to_predicting_position(x).tolist() == [[2, 3, 0]]
