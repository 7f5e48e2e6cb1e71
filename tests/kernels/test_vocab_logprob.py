"""The chunked LM-head log-probability against its specification, forward and every gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.vocab_logprob import vocab_logprob, vocab_logprob_reference
from megatron_rl.ops import VocabShard, token_logprobs
from megatron_rl.parallel.layout import padded_vocab_size
from tests.support.distributed import run_distributed

VOCAB, HIDDEN, POSITIONS = 251, 16, 37


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(POSITIONS, HIDDEN, generator=generator)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    targets = torch.randint(VOCAB, (POSITIONS,), generator=generator)
    targets[:2] = torch.tensor([VOCAB - 1, 0])
    grads = torch.randn(2, POSITIONS, generator=generator)
    return hidden, weight, targets, grads[0], grads[1]


def _reference(temperature: float, with_entropy: bool) -> list[np.ndarray]:
    hidden, weight, targets, grad_logprobs, grad_entropy = _inputs()
    hidden.requires_grad_(), weight.requires_grad_()
    logprobs, entropy = vocab_logprob_reference(hidden, weight, targets, temperature)
    loss = (logprobs * grad_logprobs).sum()
    if with_entropy:
        loss = loss + (entropy * grad_entropy).sum()
    loss.backward()
    return [x.detach().numpy() for x in (logprobs, entropy, hidden.grad, weight.grad)]


def _assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("chunk_size", [1, 7, 37, 1000])
@pytest.mark.parametrize("with_entropy", [False, True], ids=["logprobs", "entropy"])
def test_vocab_logprob_matches_reference(chunk_size: int, with_entropy: bool) -> None:
    hidden, weight, targets, grad_logprobs, grad_entropy = _inputs()
    hidden.requires_grad_(), weight.requires_grad_()
    logprobs, entropy = vocab_logprob(
        hidden, weight, targets, temperature=0.7, with_entropy=with_entropy, chunk_size=chunk_size, group=None
    )
    loss = (logprobs * grad_logprobs).sum()
    if entropy is not None:
        loss = loss + (entropy * grad_entropy).sum()
    loss.backward()
    expected = _reference(0.7, with_entropy)
    _assert_close(logprobs.detach().numpy(), expected[0])
    if entropy is not None:
        _assert_close(entropy.detach().numpy(), expected[1])
    _assert_close(hidden.grad.numpy(), expected[2])
    _assert_close(weight.grad.numpy(), expected[3])


def test_vocab_logprob_without_positions_matches_hand_computed() -> None:
    _, weight, _, _, _ = _inputs()
    hidden = torch.zeros(0, HIDDEN, requires_grad=True)
    logprobs, entropy = vocab_logprob(
        hidden, weight, torch.zeros(0, dtype=torch.int64), temperature=1.0, with_entropy=True, chunk_size=8, group=None
    )
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert hidden.grad.shape == (0, HIDDEN)


def test_vocab_logprob_survives_large_logits() -> None:
    hidden = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    logprobs, entropy = vocab_logprob(
        hidden, weight, torch.tensor([0]), temperature=1.0, with_entropy=True, chunk_size=8, group=None
    )
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.item() == 0.0
    assert entropy.item() == 0.0
    assert torch.isfinite(hidden.grad).all()


def _sharded(temperature: float) -> list[np.ndarray]:
    import torch.distributed as dist

    rank, tensor = dist.get_rank(), dist.get_world_size()
    rows = padded_vocab_size(VOCAB, tensor) // tensor
    hidden, weight, targets, grad_logprobs, grad_entropy = _inputs()
    # Padded rows hold rubbish on purpose.
    padded = torch.nn.functional.pad(weight, (0, 0, 0, rows * tensor - VOCAB), value=1e3)
    mine = padded[rank * rows : (rank + 1) * rows].clone().requires_grad_()
    hidden.requires_grad_()
    shard = VocabShard(rank * rows, (rank + 1) * rows, VOCAB, dist.group.WORLD)
    logprobs, entropy = token_logprobs(hidden, mine, targets, shard, temperature=temperature, with_entropy=True)
    ((logprobs * grad_logprobs).sum() + (entropy * grad_entropy).sum()).backward()
    dist.all_reduce(hidden.grad)
    return [x.detach().numpy() for x in (logprobs, entropy, hidden.grad, mine.grad)]


@pytest.mark.parametrize("tensor", [2, 4])
def test_token_logprobs_invariant_to_tp(tensor: int) -> None:
    answers = run_distributed(tensor, _sharded, 1.3)
    expected = _reference(1.3, True)
    for answer in answers:
        for actual, want in zip(answer[:3], expected[:3], strict=True):
            _assert_close(actual, want)
    weight_grad = np.concatenate([answer[3] for answer in answers])
    _assert_close(weight_grad[:VOCAB], expected[3])
    assert not weight_grad[VOCAB:].any(), "padded rows must get no gradient"
