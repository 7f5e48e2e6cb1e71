"""The clipped value loss."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.algorithms.value_loss import clipped_value_loss

VALUES = torch.tensor([[0.3, 0.9], [-0.4, 0.2]])
RETURNS = torch.tensor([[1.0, 1], [0, 0]])
OLD = torch.tensor([[0.1, 0.2], [0.3, 0.1]])
MASK = torch.tensor([[1, 1], [1, 0]]).bool()


def test_clipped_value_loss_matches_golden_values():
    loss, clipped = clipped_value_loss(VALUES, OLD, RETURNS, MASK, 0.5)
    assert 0.5 * loss.sum().item() / 3 == pytest.approx(0.123333, abs=1e-6)
    assert clipped.tolist() == [[False, True], [False, False]]


def test_clipped_value_loss_gradient_matches_hand_computed():
    values = VALUES.clone().requires_grad_()
    clipped_value_loss(values, OLD, RETURNS, MASK, 0.5)[0].sum().backward()
    # 2 (V - G); the second cell moved 0.7 > 0.5 and sits at its bound.
    torch.testing.assert_close(values.grad, torch.tensor([[-1.4, 0], [-0.8, 0]]))


def test_without_clip_reduces_to_squared_error():
    loss, clipped = clipped_value_loss(VALUES, OLD, RETURNS, MASK, 0.0)
    torch.testing.assert_close(loss, (VALUES - RETURNS).square() * MASK)
    assert not clipped.any()


def test_garbage_outside_the_mask_changes_nothing():
    values = torch.where(MASK, VALUES, torch.nan).requires_grad_()
    loss, _ = clipped_value_loss(values, torch.where(MASK, OLD, torch.inf), torch.where(MASK, RETURNS, torch.nan), MASK, 0.5)
    loss.sum().backward()
    assert torch.equal(loss.detach(), clipped_value_loss(VALUES, OLD, RETURNS, MASK, 0.5)[0])
    assert values.grad is not None and values.grad[1, 1] == 0
