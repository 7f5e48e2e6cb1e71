"""Kernels bound by memory traffic: ours against plain torch and, where it has the op, liger-kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.harness import Bench, Work
from kernels.masked_whiten import masked_whiten_reference
from kernels.masked_whiten.triton import masked_whiten_triton
from kernels.pack.triton import pack_triton
from kernels.repack import qkv_views
from kernels.repack.triton import RepackTable
from kernels.reverse_scan.triton import gae_triton, reverse_scan_triton
from kernels.rmsnorm import rmsnorm_reference
from kernels.rmsnorm.triton import rmsnorm_triton
from kernels.rope import rope_reference
from kernels.rope.triton import rope_triton
from kernels.swiglu import swiglu_reference
from kernels.swiglu.triton import swiglu_triton
from kernels.token_loss import TokenLossInputs, TokenLossRule, token_loss_reference
from kernels.token_loss.triton import token_loss_triton


@dataclass(frozen=True, slots=True)
class LayerSize:
    """Sizes of the layer kernels. Example: ``LayerSize(16_384, 3584, 18_944, 28, 128)``, Qwen2.5-7B."""

    tokens: int
    hidden: int
    features: int
    heads: int
    head_dim: int


def bench_layer(bench: Bench, size: LayerSize) -> None:
    """Norm, rotary embedding and gated activation, forward and backward."""
    device, tokens = bench.device, size.tokens
    x = _leaf(tokens, size.hidden, device=device)
    weight = _leaf(size.hidden, device=device)
    # Forward reads x and writes y; backward reads x and dy and writes dx.
    _pair(
        bench,
        f"rmsnorm {tokens}x{size.hidden} fwd+bwd",
        {
            "rmsnorm": lambda: rmsnorm_triton(x, weight, 1e-6),
            "torch eager": lambda: rmsnorm_reference(x, weight, 1e-6),
            "torch rms_norm": lambda: torch.nn.functional.rms_norm(x, (size.hidden,), weight, 1e-6),
            **_liger_rmsnorm(x, weight),
        },
        [x, weight],
        Work("copy", 5.0 * x.nbytes),
    )
    gate_up = _leaf(tokens, 2 * size.features, device=device)
    _pair(
        bench,
        f"swiglu {tokens}x{size.features} fwd+bwd",
        {
            "swiglu": lambda: swiglu_triton(gate_up),
            "torch eager, f32": lambda: swiglu_reference(gate_up),
            "torch eager, bf16": lambda: _bf16_swiglu(gate_up),
        },
        [gate_up],
        Work("copy", 4.0 * gate_up.nbytes),
    )
    heads = _leaf(tokens, size.heads, size.head_dim, device=device)
    angles = torch.randn(tokens, size.head_dim // 2, device=device)
    cos, sin = angles.cos(), angles.sin()
    _pair(
        bench,
        f"rope {tokens}x{size.heads}x{size.head_dim} fwd+bwd",
        {"rope": lambda: rope_triton(heads, cos, sin), "torch eager": lambda: rope_reference(heads, cos, sin)},
        [heads],
        Work("copy", 4.0 * heads.nbytes),
    )


def bench_rl(bench: Bench, rows: int, tokens: int) -> None:
    """Token loss, scans and whitening over ``[rows, tokens]``."""
    draws = torch.randn(7, rows, tokens, device=bench.device)
    mask, ends = draws[0] > -1.0, torch.zeros(rows, tokens, dtype=torch.bool, device=bench.device)
    ends[:, -1] = True
    logprobs, entropy = draws[0].clone().requires_grad_(), draws[6].clone().requires_grad_()
    inputs = TokenLossInputs(
        logprobs=logprobs,
        old_logprobs=draws[0] + 0.1 * draws[1],
        advantages=draws[2],
        weights=draws[3].abs(),
        mask=mask,
        importance=draws[4].abs(),
        ref_logprobs=draws[0] + 0.1 * draws[5],
        entropy=entropy,
    )
    rule = TokenLossRule(entropy_coeff=0.01, kl_coeff=0.01)

    plane = 4.0 * rows * tokens
    case = f"token_loss {rows}x{tokens} fwd+bwd"
    # 7 planes and the mask in, two gradients out; autograd scales both once more.
    work = Work("copy", 13.25 * plane)
    for name, loss in (("token_loss", token_loss_triton), ("torch eager", token_loss_reference)):
        step = lambda loss=loss: loss(inputs, rule).loss.backward()  # noqa: E731
        bench.measure(case, name, step, work, prepare=lambda: _clear([logprobs, entropy]))
    rewards, values = draws[1], draws[2]
    case = f"gae {rows}x{tokens}"
    bench.measure(case, "gae", lambda: gae_triton(rewards, values, mask, ends, 0.99, 0.95), Work("copy", 4.5 * plane))
    decay = torch.full_like(rewards, 0.99, dtype=torch.float64)
    case = f"reverse_scan {rows}x{tokens} f64"
    wide = rewards.double()
    bench.measure(case, "reverse_scan", lambda: reverse_scan_triton(decay, wide), Work("copy", 6.0 * plane))
    bench.measure(case, "torch doubling", lambda: _doubling(decay, wide), Work("copy", 6.0 * plane))
    case = f"masked_whiten {rows}x{tokens}"
    bench.measure(case, "masked_whiten", lambda: masked_whiten_triton(rewards, mask), Work("copy", 3.5 * plane))
    bench.measure(case, "torch eager", lambda: masked_whiten_reference(rewards, mask), Work("copy", 3.5 * plane))


def bench_moves(bench: Bench, documents: int, cells: int, hidden: int) -> None:
    """Packing of hidden states from padded rows half full."""
    padded = torch.randn(documents, cells, hidden, device=bench.device).bfloat16()
    length = cells // 2
    starts = torch.arange(documents, device=bench.device) * cells
    cu_seqlens = torch.arange(documents + 1, device=bench.device) * length
    total = documents * length
    index = (starts[:, None] + torch.arange(length, device=bench.device)).flatten()
    work = Work("copy", 2.0 * total * hidden * 2)
    case = f"pack {documents}x{cells}x{hidden} half full"
    bench.measure(case, "pack", lambda: pack_triton(padded, starts, cu_seqlens, total, length), work)
    bench.measure(case, "torch index_select", lambda: padded.flatten(0, 1).index_select(0, index), work)


def bench_repack(bench: Bench, layers: int, heads: int, groups: int, head_dim: int, hidden: int) -> None:
    """QKV weights and biases of a whole model from Megatron-Core's order into vLLM's."""
    rows = (heads + 2 * groups) * head_dim
    sources = [torch.randn(rows, hidden, device=bench.device).bfloat16() for _ in range(layers)]
    sources += [torch.randn(rows, device=bench.device).bfloat16() for _ in range(layers)]
    targets = [torch.zeros_like(x) for x in sources]
    pairs = [pair for a, b in zip(sources, targets, strict=True) for pair in qkv_views(a, b, groups, head_dim)]
    reads, writes = [a for a, _ in pairs], [b for _, b in pairs]
    prepared = RepackTable(reads, writes)
    work = Work("copy", 2.0 * sum(x.nbytes for x in sources))
    case = f"repack qkv, {layers} layers of {rows}x{hidden}"
    bench.measure(case, "repack", prepared.run, work)
    bench.measure(case, "torch _foreach_copy_", lambda: torch._foreach_copy_(writes, reads), work)
    bench.measure(case, "repack, preparing", lambda: RepackTable(reads, writes))


def _leaf(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).bfloat16().requires_grad_()


def _pair(bench: Bench, case: str, variants: dict[str, Callable[[], Tensor]], leaves: list[Tensor], work: Work) -> None:
    """Forward and backward of each variant under one upstream gradient."""
    upstream = torch.randn_like(next(iter(variants.values()))())
    for name, forward in variants.items():
        step = lambda forward=forward: forward().backward(upstream)  # noqa: E731
        bench.measure(case, name, step, work, prepare=lambda: _clear(leaves))


def _clear(leaves: list[Tensor]) -> None:
    for leaf in leaves:
        leaf.grad = None


def _liger_rmsnorm(x: Tensor, weight: Tensor) -> dict[str, Callable[[], Tensor]]:
    try:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    except ImportError:
        return {}
    return {"liger-kernel": lambda: LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)}


def _bf16_swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def _doubling(decay: Tensor, values: Tensor) -> Tensor:
    """The project's torch version: log2 T rounds over the whole tensor."""
    reach = 1
    while reach < values.shape[1]:
        values = values + decay * torch.nn.functional.pad(values[:, reach:], (0, reach))
        decay = decay * torch.nn.functional.pad(decay[:, reach:], (0, reach))
        reach *= 2
    return values
