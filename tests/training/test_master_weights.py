"""F32 master weights as bf16 weights and 16 remainder bits."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.config.training import OptimConfig
from megatron_rl.runtime.platform import Platform
from megatron_rl.training.master_weights import join_master, split_master
from megatron_rl.training.optimizer import require_optimizer


def test_split_master_matches_hand_computed() -> None:
    # 1 + 2^-9 lies below the middle of 1 and 1 + 2^-7, 1 + 3 * 2^-9 above it, 1 + 2^-8 in the middle.
    masters = torch.tensor([1.0, 1 + 2**-9, 1 + 3 * 2**-9, 1 + 2**-8, -1 - 3 * 2**-9])
    weights, remainders = split_master(masters)
    assert weights.tolist() == [1.0, 1.0, 1 + 2**-7, 1 + 2**-7, -1 - 2**-7]
    assert remainders.tolist() == [0, 2**14, -(2**14), -(2**15), -(2**14)]


def test_split_master_roundtrips() -> None:
    generator = torch.Generator().manual_seed(0)
    masters = torch.randn(10_000, generator=generator) * torch.logspace(-30, 30, 10_000)
    weights, remainders = split_master(masters)
    assert torch.equal(join_master(weights, remainders), masters)
    nearest = (weights.float() - masters).abs() <= (masters.bfloat16().float() - masters).abs()
    assert bool(nearest.all())


def test_join_master_of_no_remainder_is_the_weight() -> None:
    weights = torch.randn(1000).bfloat16()
    assert torch.equal(join_master(weights, torch.zeros(1000, dtype=torch.int16)), weights.float())


def test_require_optimizer_rejects_precision_awareness_without_transformer_engine() -> None:
    platform = Platform(torch.device("cpu"), torch.float32, "gloo", None)
    require_optimizer(OptimConfig(), platform)
    with pytest.raises(ValueError, match=r"optim\.use_precision_aware_optimizer=true needs Transformer Engine's Adam on a GPU"):
        require_optimizer(OptimConfig(use_precision_aware_optimizer=True), platform)
