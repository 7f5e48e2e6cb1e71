"""Norm, rotary embedding and gated activation: forward and every gradient against the specification in f64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.rmsnorm import rmsnorm, rmsnorm_reference
from kernels.rope import rope_reference
from kernels.swiglu import swiglu, swiglu_reference
from tests.kernels.closeness import assert_close

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


def compare(fast: Callable[..., Tensor], slow: Callable[..., Tensor], leaves: list[Tensor]) -> None:
    """Run both under the same upstream gradient; the slow one on f64 copies."""
    dtype = leaves[0].dtype
    exact = [x.detach().double().requires_grad_() for x in leaves]
    leaves = [x.detach().requires_grad_() for x in leaves]
    output, wanted = fast(*leaves), slow(*exact)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    output.backward(upstream)
    wanted.backward(upstream.double())
    assert output.dtype == dtype
    assert_close(output, wanted, dtype)
    for mine, theirs in zip(leaves, exact, strict=True):
        assert_close(mine.grad, theirs.grad, dtype)


def draw(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


@DTYPES
@pytest.mark.parametrize(("rows", "hidden"), [(1, 63), (7, 40), (3, 1000)], ids=["1x63", "7x40", "3x1000"])
def test_rmsnorm_matches_reference(rows: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
    from kernels.rmsnorm.triton import rmsnorm_triton

    leaves = [draw(rows, hidden, dtype=dtype, device=device), draw(hidden, dtype=dtype, device=device)]
    compare(lambda x, w: rmsnorm_triton(x, w, 1e-3), lambda x, w: rmsnorm_reference(x, w, 1e-3), leaves)


@pytest.mark.parametrize(("programs", "elements"), [(1, 32), (4, 32), (1, 64), (3, 4096)], ids=["1x1", "4x1", "1x2", "3x128"])
def test_rmsnorm_gradient_invariant_to_tiles(
    programs: int, elements: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 24 in tiles of one, two and all rows: a program adds up several tiles, the last of them not full."""
    import kernels.rmsnorm.triton as module

    monkeypatch.setattr(module, "BACKWARD_PROGRAMS", programs)
    monkeypatch.setattr(module, "ELEMENTS", elements)
    leaves = [draw(11, 24, dtype=torch.float32, device=device), draw(24, dtype=torch.float32, device=device)]
    compare(lambda x, w: module.rmsnorm_triton(x, w, 1e-6), lambda x, w: rmsnorm_reference(x, w, 1e-6), leaves)


@pytest.mark.parametrize("pairs", [4, 64])
def test_rope_invariant_to_tiles(pairs: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven tokens of three heads in tiles of one and of sixteen heads: tokens begin in the middle of a tile."""
    import kernels.rope.triton as module

    monkeypatch.setattr(module, "PAIRS", pairs)
    angles = draw(7, 4, dtype=torch.float32, device=device)
    cos, sin = angles.cos(), angles.sin()
    compare(
        lambda x: module.rope_triton(x, cos, sin),
        lambda x: rope_reference(x, cos.double(), sin.double()),
        [draw(7, 3, 8, dtype=torch.float32, device=device)],
    )


@DTYPES
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim", "half"), [(1, 1, 2, 1), (7, 3, 64, 32), (5, 33, 20, 6)], ids=["1", "full", "partial"]
)
def test_rope_matches_reference(
    tokens: int, heads: int, head_dim: int, half: int, dtype: torch.dtype, device: torch.device
) -> None:
    """The input is a view with gaps between heads, as queries inside a fused projection are."""
    from kernels.rope.triton import rope_triton

    fused = draw(tokens, heads, head_dim + 3, dtype=dtype, device=device)
    angles = draw(tokens, half, dtype=torch.float32, device=device)
    cos, sin = angles.cos(), angles.sin()
    compare(
        lambda x: rope_triton(x[..., 3:], cos, sin),
        lambda x: rope_reference(x[..., 3:], cos.double(), sin.double()),
        [fused],
    )


@DTYPES
@pytest.mark.parametrize(("rows", "features"), [(1, 1), (7, 63), (2, 1500)], ids=["1x1", "7x63", "2x1500"])
def test_swiglu_matches_reference(rows: int, features: int, dtype: torch.dtype, device: torch.device) -> None:
    from kernels.swiglu.triton import swiglu_triton

    compare(swiglu_triton, swiglu_reference, [3 * draw(rows, 2 * features, dtype=dtype, device=device)])


def test_rmsnorm_matches_hand_computed() -> None:
    """Mean of squares of (3, 4) is 12.5."""
    output = rmsnorm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(output, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


def test_rope_matches_hand_computed() -> None:
    """A quarter turn sends (a, b) to (-b, a); the last channel stays."""
    x = torch.tensor([[[1.0, 2.0, 5.0]]])
    assert rope_reference(x, torch.zeros(1, 1), torch.ones(1, 1)).tolist() == [[[-2.0, 1.0, 5.0]]]


def test_swiglu_rejects_odd_width() -> None:
    with pytest.raises(ValueError, match=r"kernels\.swiglu.*odd last dim, 3.*kernels\.swiglu\.reference"):
        swiglu(torch.zeros(2, 3))
