"""Packed attention: both CPU paths equal attention over each document alone, forward and every gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from megatron_rl.models.attention import packed_causal_attention

_HEADS, _GROUPS, _HEAD_DIM = 4, 2, 8


def _one_document(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal soft-max attention written out."""
    length = q.shape[0]
    k, v = (x.repeat_interleave(_HEADS // _GROUPS, dim=1) for x in (k, v))
    scores = torch.einsum("snk,tnk->nst", q, k) * _HEAD_DIM**-0.5
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    return torch.einsum("nst,tnk->snk", scores.softmax(-1), v)


@pytest.mark.parametrize("lengths", [(7, 6, 5), (1, 30, 2), (9,)], ids=["padded", "one_by_one", "single"])
def test_packed_causal_attention_matches_reference(lengths: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    total = sum(lengths)
    shapes = ((total, _HEADS, _HEAD_DIM), (total, _GROUPS, _HEAD_DIM), (total, _GROUPS, _HEAD_DIM))
    inputs = [torch.randn(*shape, generator=generator, requires_grad=True) for shape in shapes]
    weights = torch.randn(*shapes[0], generator=generator)
    bounds = torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)
    packed = packed_causal_attention(*inputs, bounds, lengths, _HEAD_DIM**-0.5)
    grads = torch.autograd.grad((packed * weights).sum(), inputs)
    alone = torch.cat([_one_document(*parts) for parts in zip(*(x.split(lengths) for x in inputs), strict=True)])
    expected_grads = torch.autograd.grad((alone * weights).sum(), inputs)
    torch.testing.assert_close(packed, alone, rtol=1e-5, atol=1e-6)
    for grad, expected in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-5)
