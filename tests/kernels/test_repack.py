"""Batches of strided copies, and the two orders of attention weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.repack import prepare_repack, qkv_views, repack_reference
from kernels.repack.pieces import copy_piece


def make_pairs(device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """Columns, a transpose, odd offsets, three outer dims, a scalar, an empty view and a long run."""
    base = torch.randn(40_000, generator=torch.Generator().manual_seed(0)).to(device)
    target = torch.full((40_000,), float("nan"), device=device)
    columns, block = base[:6400].view(50, 128), target[:3200].view(50, 64)
    deep, flat = base[:5040].view(7, 6, 5, 24), target[4000:7360].view(7, 4, 5, 24)
    sources = [columns[:, 32:96], columns[:9, :7].T, base[1:64], deep[:, 1:5], base[3], base[:0], base[100:10_100]]
    destinations = [
        block,
        target[3200:3263].view(7, 9),
        target[3301:3364],
        flat,
        target[3999],
        target[:0],
        target[9_001:19_001],
    ]
    return sources, destinations


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "to-f16"])
def test_repack_matches_reference(dtype: torch.dtype, device: torch.device) -> None:
    from kernels.repack.triton import RepackTable

    sources, destinations = make_pairs(device)
    whole = torch.full((40_000,), float("nan"), dtype=dtype, device=device)
    mine = [torch.as_strided(whole, d.shape, d.stride(), d.storage_offset()) for d in destinations]
    expected = whole.clone()
    theirs = [torch.as_strided(expected, d.shape, d.stride(), d.storage_offset()) for d in destinations]
    repack_reference(sources, theirs)
    RepackTable(sources, mine).run()
    torch.testing.assert_close(whole, expected, rtol=0, atol=0, equal_nan=True)


def test_repack_addresses_beyond_32_bits(device: torch.device) -> None:
    """Rows two billion elements apart, in memory that is reserved but hardly touched."""
    from kernels.repack.triton import RepackTable

    far = torch.empty_strided((2, 64), (2**31, 1), dtype=torch.int16, device=device)
    near = torch.arange(128, dtype=torch.int16, device=device).view(2, 64)
    RepackTable([near], [far]).run()
    assert torch.equal(far, near)


def test_copy_piece_fuses_and_aligns() -> None:
    base = torch.zeros(4096, dtype=torch.bfloat16)
    piece = copy_piece(base[:4096].view(8, 16, 32)[:, 4:12], base.view(2, 64, 32)[0].view(8, 8, 32))
    assert (piece.run, piece.outer) == (256, (1, 1, 8))
    assert (piece.source_strides[-1], piece.destination_strides[-1]) == (512, 256)
    assert piece.aligned
    assert not copy_piece(base[1:65], base[64:128]).aligned


def test_repack_rejects_many_dims() -> None:
    deep = torch.zeros(3, 3, 3, 3, 3, 3)[::2, ::2, ::2, ::2, ::2]
    with pytest.raises(ValueError, match=r"kernels\.repack.*outer dims.*kernels\.repack\.reference"):
        copy_piece(deep, torch.zeros(deep.shape).permute(4, 3, 2, 1, 0, 5))


@pytest.mark.parametrize("trailing", [(), (12,)], ids=["bias", "weight"])
def test_qkv_views_match_hand_computed(trailing: tuple[int, ...]) -> None:
    """Two groups of two query heads: [q0 q1 k0 v0 q2 q3 k1 v1] becomes [q0 q1 q2 q3 k0 k1 v0 v1]."""
    heads = torch.tensor([0, 1, 10, 20, 2, 3, 11, 21]).repeat_interleave(3)
    grouped = heads.view(-1, *(1 for _ in trailing)).expand(24, *trailing).clone()
    stacked = torch.zeros_like(grouped)
    pairs = qkv_views(grouped, stacked, num_groups=2, head_dim=3)
    prepare_repack([a for a, _ in pairs], [b for _, b in pairs]).run()
    first = stacked.view(8, 3, -1)[:, 0, 0]
    assert first.tolist() == [0, 1, 2, 3, 10, 11, 20, 21]
    back = torch.zeros_like(grouped)
    pairs = qkv_views(back, stacked, num_groups=2, head_dim=3)
    prepare_repack([b for _, b in pairs], [a for a, _ in pairs]).run()
    assert torch.equal(back, grouped)
