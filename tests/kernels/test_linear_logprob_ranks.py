"""Joining statistics over a process group; no Triton."""

from __future__ import annotations

import pytest
import torch

from kernels.linear_logprob.stats import combine
from tests.support.distributed import run_distributed


def _gathered() -> list[float]:
    import torch.distributed as dist

    rank = dist.get_rank()
    logits = torch.tensor([[0.5, 2.0], [-1.0, 3.0]])[rank]
    top = logits.max()
    weights = (logits - top).exp()
    picked = logits[1] if rank == 1 else torch.tensor(0.0)
    stats = torch.stack((top, weights.sum(), (weights * (logits - top)).sum(), picked))[:, None]
    joined = combine(stats, dist.group.WORLD)
    return [joined.logprobs_N.item(), joined.entropy_N.item(), joined.log_total_N.item()]


def test_combine_matches_hand_computed() -> None:
    logprobs = torch.log_softmax(torch.tensor([0.5, 2.0, -1.0, 3.0], dtype=torch.float64), 0)
    entropy = -(logprobs.exp() * logprobs).sum().item()
    for answer in run_distributed(2, _gathered):
        assert answer == pytest.approx([logprobs[3].item(), entropy, 3.0 - logprobs[3].item()], rel=1e-6)
