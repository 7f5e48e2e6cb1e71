"""Whitening against its specification, and that against the algorithms package."""

from __future__ import annotations

import pytest
import torch

from kernels.masked_whiten import masked_whiten, masked_whiten_reference
from megatron_rl.algorithms.masked_stats import masked_whiten as whiten_of_algorithms
from tests.kernels.closeness import assert_close


@pytest.mark.parametrize("shape", [(1,), (63,), (3, 1000), (5, 2048)], ids=["1", "63", "3x1000", "5x2048"])
def test_masked_whiten_matches_reference(shape: tuple[int, ...], device: torch.device) -> None:
    from kernels.masked_whiten.triton import masked_whiten_triton

    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(shape, generator=generator) * 3 + 100).to(device)
    mask = (torch.rand(shape, generator=generator) < 0.5).to(device)
    x.masked_fill_(~mask, float("nan"))
    actual = masked_whiten_triton(x, mask)
    assert_close(actual, masked_whiten_reference(x, mask), torch.float32)
    assert not actual[~mask].any()


@pytest.mark.parametrize("counted", [0, 1, 7], ids=["none", "one", "all-equal"])
def test_masked_whiten_without_spread_matches_hand_computed(counted: int, device: torch.device) -> None:
    from kernels.masked_whiten.triton import masked_whiten_triton

    x = torch.full((7,), 0.1, device=device)
    mask = torch.arange(7, device=device) < counted
    assert not masked_whiten_triton(x, mask).any()


def test_masked_whiten_shows_nan(device: torch.device) -> None:
    from kernels.masked_whiten.triton import masked_whiten_triton

    x = torch.tensor([1.0, float("nan"), 2.0], device=device)
    mask = torch.tensor([True, True, False], device=device)
    assert masked_whiten_triton(x, mask).isnan().tolist() == [True, True, False]


def test_masked_whiten_on_cpu_matches_reference() -> None:
    x, mask = torch.randn(4, 9), torch.rand(4, 9) < 0.5
    torch.testing.assert_close(masked_whiten(x, mask), whiten_of_algorithms(x, mask).float())


def test_masked_whiten_rejects_other_masks() -> None:
    with pytest.raises(ValueError, match=r"kernels\.masked_whiten.*mask torch\.float32 \(4,\)"):
        masked_whiten(torch.zeros(4), torch.ones(4))
