"""Backward recurrences against a loop, and GAE and returns against the algorithms package."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.reverse_scan import discounted_returns, gae, gae_reference, reverse_scan_reference
from megatron_rl.algorithms.advantages import AdvantageInputs
from megatron_rl.algorithms.advantages import gae as gae_estimator
from tests.kernels.closeness import assert_close

SHAPES = [pytest.param(1, 1, id="1"), pytest.param(3, 63, id="63"), pytest.param(2, 150, id="150")]
BLOCK = 64
"""Small, so that a row has several blocks."""


def make_sequences(rows: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, values (NaN outside the mask), a mask with gaps, ends of several packed sequences a row."""
    generator = torch.Generator().manual_seed(tokens)
    rewards, values = torch.randn(2, rows, tokens, generator=generator).to(device)
    mask = (torch.rand(rows, tokens, generator=generator) < 0.7).to(device)
    ends = (torch.rand(rows, tokens, generator=generator) < 0.02).to(device)
    rewards.masked_fill_(~mask, float("nan")), values.masked_fill_(~mask, float("nan"))
    return rewards, values, mask, ends


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize(("rows", "tokens"), SHAPES)
def test_reverse_scan_matches_reference(rows: int, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
    from kernels.reverse_scan.triton import reverse_scan_triton

    generator = torch.Generator().manual_seed(tokens)
    values = torch.randn(rows, tokens, generator=generator, dtype=torch.float64).to(device)
    decay = (torch.rand(rows, tokens, generator=generator, dtype=torch.float64) * 1.02).to(device)
    decay[:, tokens // 2] = 0.0
    decay, values = decay.to(dtype), values.to(dtype)
    assert_close(reverse_scan_triton(decay, values, BLOCK), reverse_scan_reference(decay.double(), values.double()), dtype)


@pytest.mark.parametrize(
    ("rows", "tokens", "dtype"),
    [
        pytest.param(1, 1, torch.float32, id="1"),
        pytest.param(2, 63, torch.float32, id="63"),
        pytest.param(1, 150, torch.float64, id="150-f64"),
    ],
)
def test_gae_matches_reference(rows: int, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
    from kernels.reverse_scan.triton import gae_triton

    rewards, values, mask, ends = make_sequences(rows, tokens, device)
    actual = gae_triton(rewards.to(dtype), values.to(dtype), mask, ends, 0.99, 0.95, BLOCK)
    expected = gae_reference(rewards.double(), values.double(), mask, ends, 0.99, 0.95)
    for mine, wanted in zip(actual, expected, strict=True):
        assert_close(mine, wanted, dtype)


def test_gae_invariant_to_packing() -> None:
    """Packed into one row with ends, and padded into rows with the estimator of the algorithms package."""
    rewards, values, mask, _ = make_sequences(4, 20, torch.device("cpu"))
    ends = torch.zeros_like(mask)
    ends[:, -1] = True
    packed = gae(*(x.reshape(1, -1) for x in (rewards, values, mask, ends)), 0.9, 0.8)
    inputs = AdvantageInputs(
        token_rewards_BS=rewards,
        values_BS=values,
        mask_BS=mask,
        group_ids_B=torch.arange(4),
        valid_B=torch.ones(4, dtype=torch.bool),
        gamma=0.9,
        lam=0.8,
        whiten=False,
    )
    for mine, wanted in zip(packed, gae_estimator(inputs), strict=True):
        torch.testing.assert_close(mine.view(4, 20), wanted)
    returns = discounted_returns(rewards, mask, ends, 0.9)
    torch.testing.assert_close(returns, inputs.returns_BS.float())


def test_discounted_returns_match_hand_computed() -> None:
    """Two sequences; the token outside the mask neither discounts nor blocks."""
    returns = discounted_returns(
        torch.tensor([[1.0, float("nan"), 2.0, 4.0]]),
        torch.tensor([[True, False, True, True]]),
        torch.tensor([[False, False, True, True]]),
        0.5,
    )
    assert returns.tolist() == [[2.0, 0.0, 2.0, 4.0]]


def test_gae_rejects_integer_masks() -> None:
    x = torch.zeros(1, 3)
    with pytest.raises(ValueError, match=r"kernels\.reverse_scan.*torch\.bool.*kernels\.reverse_scan\.reference"):
        gae(x, x, x.long(), x.bool(), 1.0, 1.0)
