"""Packing and unpacking: values, gradients and round trips."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.pack import pack, pack_reference, unpack_reference
from tests.kernels.closeness import assert_close

LENGTHS = [63, 1, 0, 1000, 7]
CELLS, TOKENS = 1010, 1080


def layout(device: torch.device) -> tuple[Tensor, Tensor]:
    """One document per row, each starting two cells in; the pack has a tail of padding."""
    starts = torch.arange(len(LENGTHS)) * CELLS + 2
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32)
    return starts.to(device), cu_seqlens.to(device)


@pytest.mark.parametrize(("trailing", "dtype"), [((), torch.float32), ((3,), torch.bfloat16)], ids=["flat", "3-bf16"])
def test_pack_and_unpack_match_reference(trailing: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    from kernels.pack.triton import pack_triton, unpack_triton

    starts, cu_seqlens = layout(device)
    padded = torch.randn(len(LENGTHS), CELLS, *trailing, device=device).to(dtype).requires_grad_()
    packed = pack_triton(padded, starts, cu_seqlens, TOKENS, max(LENGTHS))
    assert torch.equal(packed, pack_reference(padded, starts, cu_seqlens, TOKENS))
    back = unpack_triton(packed, starts, cu_seqlens, *padded.shape[:2], max(LENGTHS))
    assert torch.equal(back, unpack_reference(packed, starts, cu_seqlens, *padded.shape[:2]))
    upstream = torch.randn_like(back)
    back.backward(upstream)
    kept = unpack_reference(torch.ones_like(packed), starts, cu_seqlens, *padded.shape[:2]) != 0
    assert_close(padded.grad, torch.where(kept, upstream, 0.0), dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=["i64", "bool"])
def test_pack_of_integers_matches_reference(dtype: torch.dtype, device: torch.device) -> None:
    from kernels.pack.triton import pack_triton

    starts, cu_seqlens = layout(device)
    padded = torch.randint(0, 2**40, (len(LENGTHS), CELLS), device=device).to(dtype)
    packed = pack_triton(padded, starts, cu_seqlens, TOKENS, max(LENGTHS))
    assert torch.equal(packed, pack_reference(padded, starts, cu_seqlens, TOKENS))


def test_pack_matches_hand_computed() -> None:
    packed = pack(
        torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([1, 3]), torch.tensor([0, 2, 3]), num_tokens=4, max_seqlen=2
    )
    assert packed.tolist() == [1, 2, 3, 0]


def test_pack_rejects_narrow_starts() -> None:
    with pytest.raises(ValueError, match=r"kernels\.pack.*starts torch\.int32"):
        pack(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int32), torch.tensor([0, 2]), num_tokens=2, max_seqlen=2)
