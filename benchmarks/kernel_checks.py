"""Every kernel against its reference on the device at hand: values and each gradient, awkward sizes, poisoned outputs.

Needs neither pytest nor the rest of the project, so that it runs on a bare machine; the tests under tests/kernels are
the full set. Errors are relative, in norm, against the reference in f64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.linear_logprob import linear_logprob_reference
from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton
from kernels.linear_logprob.recompute import linear_logprob_triton
from kernels.linear_logprob.tiles import Tiling
from kernels.masked_whiten import masked_whiten_reference
from kernels.masked_whiten.triton import masked_whiten_triton
from kernels.pack import pack_reference, unpack_reference
from kernels.pack.triton import pack_triton, unpack_triton
from kernels.repack import qkv_views, repack_reference
from kernels.repack.triton import RepackTable
from kernels.reverse_scan import gae_reference, reverse_scan_reference
from kernels.reverse_scan.triton import gae_triton, reverse_scan_triton
from kernels.rmsnorm import rmsnorm_reference
from kernels.rmsnorm.triton import rmsnorm_triton
from kernels.rope import rope_reference
from kernels.rope.triton import rope_triton
from kernels.swiglu import swiglu_reference
from kernels.swiglu.triton import swiglu_triton
from kernels.token_loss import TokenLossInputs, TokenLossRule, token_loss_reference
from kernels.token_loss.triton import token_loss_triton

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison."""

    name: str
    error: float
    """Largest relative error of value and gradients; NaN where an output was left unwritten."""
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit (NaN is not)."""
        return self.error <= self.limit


def run_checks(device: torch.device, large: bool) -> Iterator[Check]:
    """All checks; ``large`` adds sizes only a GPU takes."""
    makers: list[Callable[[torch.device, bool], Iterator[Check]]] = [
        _linear_logprob,
        _token_loss,
        _scans,
        _whiten_and_pack,
        _repack,
        _layer_kernels,
    ]
    with poisoned():
        for make in makers:
            try:
                yield from make(device, large)
            except Exception as error:
                yield Check(f"{make.__name__} raised {type(error).__name__}: {str(error)[:300]}", float("nan"), 0.0)


@contextmanager
def poisoned() -> Iterator[None]:
    """NaN in whatever ``torch.empty`` and ``torch.empty_like`` return."""
    originals = torch.empty, torch.empty_like

    def filled(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrapper(*args: Any, **kwargs: Any) -> Tensor:
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return wrapper

    torch.empty, torch.empty_like = map(filled, originals)
    try:
        yield
    finally:
        torch.empty, torch.empty_like = originals


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """``|actual - expected| / |expected|``."""
    wanted = expected.detach().double()
    return ((actual.detach().double() - wanted).norm() / wanted.norm().clamp(min=1e-30)).item()


def _compare(name: str, fast: Callable[..., Tensor], slow: Callable[..., Tensor], leaves: list[Tensor]) -> Check:
    """Values and gradients by every leaf under one random upstream gradient."""
    mine = [x.detach().clone().requires_grad_() for x in leaves]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    output, wanted = fast(*mine), slow(*exact)
    upstream = torch.randn(output.shape, device=output.device).to(output.dtype)
    output.backward(upstream)
    wanted.backward(upstream.double())
    pairs = [(output, wanted), *((a.grad, b.grad) for a, b in zip(mine, exact, strict=True))]
    return Check(name, _worst(pairs), TOLERANCES[leaves[0].dtype])


def _worst(pairs: list[tuple[Tensor, Tensor]]) -> float:
    return torch.tensor([relative_error(a, b) for a, b in pairs]).max().item()  # a NaN wins


def _linear_logprob(device: torch.device, large: bool) -> Iterator[Check]:
    sizes = [(1, 63, 16, 64), (63, 1000, 40, 256)]
    if large:
        sizes += [(1000, 50_001, 576, 8192), (1024, 151_936, 1536, 8192)]
    for dtype in DTYPES:
        for tokens, vocab, hidden, rows in sizes:
            name = f"{tokens}x{vocab}x{hidden} {str(dtype)[6:]}"
            h = torch.randn(tokens, hidden, device=device).to(dtype)
            w = (torch.randn(vocab, hidden, device=device) * 2 / hidden**0.5).to(dtype)
            yield from _head_checks(name, h, w, Tiling(max(1, tokens * 2 // 3), rows))
    if large:
        yield _far_rows(device)


def _head_checks(name: str, hidden: Tensor, weight: Tensor, tiling: Tiling) -> Iterator[Check]:
    targets = torch.randint(weight.shape[0], hidden.shape[:1], device=hidden.device)
    upstream = torch.randn(2, hidden.shape[0], device=hidden.device)
    exact = [x.double().requires_grad_() for x in (hidden, weight)]
    logprobs, entropy = linear_logprob_reference(exact[0], exact[1], targets, 0.7)
    ((logprobs * upstream[0]).sum() + (entropy * upstream[1]).sum()).backward()

    leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
    arguments: dict[str, Any] = {"temperature": 0.7, "with_entropy": True, "group": None, "tiling": tiling}
    actual, actual_entropy = linear_logprob_triton(*leaves, targets, **arguments)
    assert actual_entropy is not None
    ((actual * upstream[0]).sum() + (actual_entropy * upstream[1]).sum()).backward()
    grads = [(a.grad, b.grad) for a, b in zip(leaves, exact, strict=True)]
    yield Check(f"linear_logprob values {name}", _worst([(actual, logprobs), (actual_entropy, entropy)]), 1e-5)
    yield Check(f"linear_logprob gradients {name}", _worst(grads), TOLERANCES[hidden.dtype])

    def loss(tokens: slice, x: Tensor, y: Tensor | None) -> Tensor:
        assert y is not None
        return (x * upstream[0, tokens]).sum() + (y * upstream[1, tokens]).sum()

    for half in (False, True):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        linear_token_loss_triton(*leaves, targets, differentiated(loss), **arguments, half_logits=half).backward()
        grads = [(a.grad, b.grad) for a, b in zip(leaves, exact, strict=True)]
        label = "linear_token_loss half logits" if half else "linear_token_loss"
        yield Check(f"{label} gradients {name}", _worst(grads), TOLERANCES[hidden.dtype] * (2 if half else 1))


def _far_rows(device: torch.device) -> Check:
    """Kept logits of more than 2^31 elements give the gradients that small cuts give."""
    hidden = torch.randn(16_384, 64, device=device).bfloat16()
    weight = (torch.randn(151_936, 64, device=device) / 8).bfloat16()
    targets = torch.randint(151_936, (16_384,), device=device)
    found = []
    for tokens in (16_384, 2048):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        loss = linear_token_loss_triton(
            *leaves,
            targets,
            differentiated(lambda _, x, __: x.sum()),
            temperature=1.0,
            with_entropy=False,
            group=None,
            tiling=Tiling(tokens, 8192),
        )
        loss.backward()
        found.append([leaf.grad for leaf in leaves])
    return Check("linear_token_loss beyond 2^31 logits", _worst(list(zip(*found, strict=True))), 1e-2)


def _token_loss(device: torch.device, large: bool) -> Iterator[Check]:
    for tokens in (1, 63, 100_003 if large else 1000):
        for kind in ("k1", "k2", "k3", "abs"):
            rule = TokenLossRule(clip_high=0.3, clip_c=1.5, entropy_coeff=0.1, kl_coeff=0.2, kl_kind=kind)
            yield _token_loss_check(tokens, rule, device)


def _token_loss_check(num_tokens: int, rule: TokenLossRule, device: torch.device) -> Check:
    draws = torch.randn(7, num_tokens, device=device)
    mask = torch.rand(num_tokens, device=device) < 0.8
    mask[0] = True
    draws.masked_fill_(~mask, float("nan"))
    found = []
    for dtype in (torch.float32, torch.float64):
        logprobs, noise, advantages, weights, importance, ref, entropy = draws.to(dtype).unbind()
        leaves = [logprobs.clone().requires_grad_(), entropy.clone().requires_grad_()]
        inputs = TokenLossInputs(
            logprobs=leaves[0],
            old_logprobs=logprobs + 0.5 * noise,
            advantages=advantages,
            weights=weights.abs(),
            mask=mask,
            importance=importance.abs(),
            ref_logprobs=logprobs + 0.3 * ref,
            entropy=leaves[1],
        )
        sums = (token_loss_triton if dtype == torch.float32 else token_loss_reference)(inputs, rule)
        sums.loss.backward()
        values = torch.stack([getattr(sums, f.name).detach().double() for f in dataclasses.fields(sums)])
        found.append([values, *(leaf.grad for leaf in leaves)])
    return Check(f"token_loss {num_tokens} {rule.kl_kind}", _worst(list(zip(*found, strict=True))), 1e-5)


def _scans(device: torch.device, large: bool) -> Iterator[Check]:
    for rows, tokens in ((1, 1), (3, 63), (4, 3000 if large else 100)):
        x, values = torch.randn(2, rows, tokens, device=device)
        decay = torch.rand(rows, tokens, device=device)
        mask, ends = torch.rand(rows, tokens, device=device) < 0.7, torch.rand(rows, tokens, device=device) < 0.02
        expected = reverse_scan_reference(decay.double(), x.double())
        yield Check(f"reverse_scan {rows}x{tokens}", relative_error(reverse_scan_triton(decay, x), expected), 1e-6)
        actual = gae_triton(x, values, mask, ends, 0.99, 0.95)
        wanted = gae_reference(x.double(), values.double(), mask, ends, 0.99, 0.95)
        yield Check(f"gae {rows}x{tokens}", _worst(list(zip(actual, wanted, strict=True))), 1e-6)


def _whiten_and_pack(device: torch.device, large: bool) -> Iterator[Check]:
    for cells in (1, 63, 1_000_003 if large else 5000):
        x, mask = torch.randn(cells, device=device) + 100, torch.rand(cells, device=device) < 0.5
        expected = masked_whiten_reference(x, mask)
        yield Check(f"masked_whiten {cells}", relative_error(masked_whiten_triton(x, mask), expected), 1e-5)
    lengths = [63, 1, 0, 1000, 7]
    starts = torch.arange(5, device=device) * 1010 + 2
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    padded = torch.randn(5, 1010, 3, device=device).bfloat16()
    packed = pack_triton(padded, starts, cu_seqlens, 1080, 1000)
    back = unpack_triton(packed, starts, cu_seqlens, 5, 1010, 1000)
    wanted = pack_reference(padded, starts, cu_seqlens, 1080)
    pairs = [(packed, wanted), (back, unpack_reference(wanted, starts, cu_seqlens, 5, 1010))]
    yield Check("pack and unpack", _worst(pairs), 0.0)


def _repack(device: torch.device, large: bool) -> Iterator[Check]:
    for hidden, read, written in (
        (64, torch.bfloat16, torch.bfloat16),
        (37, torch.bfloat16, torch.bfloat16),
        (64, torch.float32, torch.float16),
    ):
        grouped = [torch.randn(6 * 16, *trailing, device=device).to(read) for trailing in ((hidden,), ())]
        fast, slow = ([torch.zeros_like(x, dtype=written) for x in grouped] for _ in range(2))
        pairs, wanted = (
            [p for g, s in zip(grouped, side, strict=True) for p in qkv_views(g, s, 2, 16)] for side in (fast, slow)
        )
        RepackTable([a for a, _ in pairs], [b for _, b in pairs]).run()
        repack_reference([a for a, _ in wanted], [b for _, b in wanted])
        yield Check(
            f"repack qkv {hidden} {str(read)[6:]} to {str(written)[6:]}", _worst(list(zip(fast, slow, strict=True))), 0.0
        )


def _layer_kernels(device: torch.device, large: bool) -> Iterator[Check]:
    rows = 1000 if large else 7
    for dtype in DTYPES:
        short = str(dtype)[6:]
        for hidden in (63, 1000, 3584 if large else 128):
            x, w = torch.randn(rows, hidden, device=device).to(dtype), torch.randn(hidden, device=device).to(dtype)
            yield _compare(
                f"rmsnorm {rows}x{hidden} {short}",
                lambda x, w: rmsnorm_triton(x, w, 1e-6),
                lambda x, w: rmsnorm_reference(x, w, 1e-6),
                [x, w],
            )
            gate_up = torch.randn(rows, 2 * hidden, device=device).to(dtype)
            yield _compare(f"swiglu {rows}x{hidden} {short}", swiglu_triton, swiglu_reference, [gate_up])
        for heads, head_dim, half in ((1, 2, 1), (28, 128, 64), (33, 20, 6)):
            x = torch.randn(rows, heads, head_dim, device=device).to(dtype)
            cos, sin = (f(torch.randn(rows, half, device=device)) for f in (torch.cos, torch.sin))
            yield _rope_check(f"rope {rows}x{heads}x{head_dim} {short}", x, cos, sin)


def _rope_check(name: str, x: Tensor, cos: Tensor, sin: Tensor) -> Check:
    return _compare(name, lambda x: rope_triton(x, cos, sin), lambda x: rope_reference(x, cos.double(), sin.double()), [x])
