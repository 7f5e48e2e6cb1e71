"""Loss aggregation with global denominators."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_rl.algorithms.loss_weights import loss_weights
from megatron_rl.config.training import LossAggMode

MODES = get_args(LossAggMode)
LOSS = torch.tensor([[1.0, 2, 30], [4, 50, 6]])
MASK = torch.tensor([[1, 1, 0], [1, 0, 1]]).bool()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 3.25),
        ("token-sum", 13.0),
        ("seq-mean-token-sum", 6.5),
        ("seq-mean-token-sum-norm", 2.166667),
        ("seq-mean-token-mean", 3.25),
    ],
)
def test_loss_weights_matches_golden_values(mode, expected):
    assert (loss_weights(MASK, mode, 3) * LOSS).sum().item() == pytest.approx(expected, abs=1e-6)


def test_loss_weights_matches_hand_computed():
    ragged = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    weights = loss_weights(ragged, "seq-mean-token-mean", 4)
    torch.testing.assert_close(weights, torch.tensor([[1 / 6, 1 / 6, 1 / 6, 0], [1 / 2, 0, 0, 0]]))


@pytest.mark.parametrize("mode", MODES)
def test_empty_response_changes_nothing(mode):
    with_empty = torch.cat([MASK, torch.zeros(1, 3).bool()])
    weights = loss_weights(with_empty, mode, 3)
    assert torch.equal(weights[:2], loss_weights(MASK, mode, 3)) and weights[2].sum() == 0


@pytest.mark.parametrize("mode", MODES)
def test_all_masked_batch_weighs_zero(mode):
    assert torch.equal(loss_weights(torch.zeros(2, 3).bool(), mode, 3), torch.zeros(2, 3))


@pytest.mark.parametrize("mode", MODES)
def test_loss_weights_invariant_to_padding(mode):
    padded = torch.nn.functional.pad(MASK, (0, 5))
    assert torch.equal(loss_weights(padded, mode, 3)[:, :3], loss_weights(MASK, mode, 3))


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), cuts=st.sets(st.integers(1, 7)))
def test_weighted_sum_invariant_to_microbatching(mode, seed, cuts):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(8, 6, generator=generator) < 0.5
    loss = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    weighted = loss * loss_weights(mask, mode, 6)
    bounds = [0, *sorted(cuts), 8]
    parts = [weighted[a:b].sum() for a, b in pairwise(bounds)]
    torch.testing.assert_close(torch.stack(parts).sum(), weighted.sum())
