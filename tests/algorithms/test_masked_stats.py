"""Masked statistics."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.algorithms.masked_stats import masked_mean, masked_sum, masked_var, masked_whiten

NAN = math.nan


def mask_of(*cells: int) -> torch.Tensor:
    return torch.tensor(cells, dtype=torch.bool)


def test_masked_mean_ignores_nan_outside():
    assert masked_mean(torch.tensor([1.0, 2, NAN, 4]), mask_of(1, 0, 0, 1)).item() == 2.5


@pytest.mark.parametrize("statistic", [masked_sum, masked_mean, masked_var])
def test_statistic_keeps_nan_inside(statistic):
    assert statistic(torch.tensor([1.0, NAN, 3]), mask_of(1, 1, 0)).isnan()


@pytest.mark.parametrize("statistic", [masked_sum, masked_mean, masked_var])
def test_statistic_of_empty_mask_is_zero(statistic):
    assert statistic(torch.tensor([NAN, 3.0]), mask_of(0, 0)).item() == 0


def test_masked_var_matches_hand_computed():
    assert masked_var(torch.tensor([1.0, 9, 2, 3]), mask_of(1, 0, 1, 1)).item() == 1.0


def test_masked_var_of_one_cell_is_zero():
    assert masked_var(torch.tensor([1.0, 9]), mask_of(1, 0)).item() == 0


def test_masked_whiten_matches_hand_computed():
    result = masked_whiten(torch.tensor([1.0, NAN, 2, 3]), mask_of(1, 0, 1, 1))
    torch.testing.assert_close(result, torch.tensor([-1.0, 0, 0, 1]).double(), atol=1e-7, rtol=0)


def test_masked_whiten_of_equal_cells_is_exactly_zero():
    assert torch.equal(masked_whiten(torch.full((7,), 0.1), mask_of(*[1] * 7)), torch.zeros(7).double())


def test_masked_mean_has_no_gradient_outside():
    x = torch.tensor([1.0, NAN, 3], requires_grad=True)
    masked_mean(x, mask_of(1, 0, 1)).backward()
    assert x.grad is not None and x.grad.tolist() == [0.5, 0.0, 0.5]
