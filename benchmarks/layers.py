"""Parts of a transformer layer and stacks of whole layers: ``python benchmarks/layers.py --out DIR``; needs a GPU.

Times whole layers of two shapes under both layer specs as training runs them; then attention over packed documents (torch's
variable-length kernel, Transformer Engine's), norms, rotations and gated activations, each forward and backward as a CUDA
graph, so that only the device's time counts. Prints a line per measurement and writes ``DIR/layers.json`` and
``DIR/layers.md``. Stops by itself after ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

# This file's folder would answer ``import kernels`` with benchmarks/kernels.py.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks.ceilings import measure_ceilings  # noqa: E402
from benchmarks.harness import Bench, OutOfTimeError, Work, stopped_after, table, write_json  # noqa: E402
from benchmarks.layer_stacks import bench_stacks  # noqa: E402

TOKENS = 16_384
HEAD_DIM = 128
ATTENTION_SHAPES = ((12, 2), (28, 4), (16, 16))
"""Query and key/value heads."""
Variant = tuple[Callable[[], Tensor], list[Tensor]]
"""A forward pass and what it is differentiated by."""


def main() -> int:
    """Exit code 0 when everything was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=120, help="seconds")
    parser.add_argument("--only", choices=("stacks", "attention", "parts"))
    chosen = parser.parse_args()
    bench = Bench(torch.device("cuda", 0), time.monotonic() + chosen.limit - 5)
    sections = {"stacks": bench_stacks, "attention": bench_attention, "parts": bench_parts}
    finished = False
    try:
        with stopped_after(chosen.limit):
            measure_ceilings(bench)
            for name in [chosen.only] if chosen.only else sections:
                sections[name](bench)
            finished = True
    except OutOfTimeError:
        print("out of time; what follows is what there is", flush=True)
    write_json(chosen.out / "layers.json", bench.rows, {"ceilings": bench.ceilings, "finished": finished})
    (chosen.out / "layers.md").write_text(table(bench.rows) + "\n")
    return 0 if finished else 1


def as_graph(step: Callable[[], object]) -> Callable[[], object]:
    """The step as a CUDA graph; its results lie in the graph's own memory."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _compare(bench: Bench, case: str, variants: dict[str, Variant], work: Work) -> None:
    """Forward alone without gradients, and forward with backward, of each variant."""
    for name, (forward, leaves) in variants.items():
        _measure(bench, f"{case} fwd", name, torch.no_grad()(forward), None)
        try:
            upstream = torch.randn_like(forward())
        except Exception as error:
            bench.skip(f"{case} fwd+bwd", name, f"{type(error).__name__}: {str(error)[:160]}")
            continue

        def step(forward: Callable[[], Tensor] = forward, leaves: list[Tensor] = leaves, upstream: Tensor = upstream) -> None:
            torch.autograd.grad(forward(), leaves, upstream)

        _measure(bench, f"{case} fwd+bwd", name, step, work)


def _measure(bench: Bench, case: str, variant: str, step: Callable[[], object], work: Work | None) -> None:
    try:
        run = as_graph(step)
    except Exception as error:
        bench.skip(case, variant, f"{type(error).__name__}: {str(error)[:160]}")
        print(f"  {case} | {variant}: {type(error).__name__}: {str(error)[:160]}", flush=True)
        return
    bench.measure(case, variant, run, work)


def bench_attention(bench: Bench) -> None:
    """Causal attention inside documents of 512 to 1,536 tokens, 16,384 in all."""
    generator = torch.Generator().manual_seed(0)
    lengths: list[int] = []
    while sum(lengths) < TOKENS:
        drawn = int(torch.randint(512, 1537, (), generator=generator))
        lengths.append(min(drawn, TOKENS - sum(lengths)))
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(bench.device, torch.int32)
    for heads, groups in ATTENTION_SHAPES:
        q, k, v = (_leaf(TOKENS, n, HEAD_DIM, device=bench.device) for n in (heads, groups, groups))
        # Two products forward and five backward over the causal half of each document's pairs.
        work = Work("matmul", 7.0 * heads * HEAD_DIM * sum(length**2 for length in lengths))
        variants = _attention_variants(q, k, v, bounds, tuple(lengths))
        _compare(bench, f"attention {TOKENS} tokens, heads {heads}:{groups}", variants, work)


def _attention_variants(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, lengths: tuple[int, ...]) -> dict[str, Variant]:
    from transformer_engine.pytorch import DotProductAttention

    from megatron_rl.models.attention import packed_causal_attention

    (_, heads, _), (_, groups, _), longest, scale = q.shape, k.shape, max(lengths), HEAD_DIM**-0.5
    engine = DotProductAttention(
        heads, HEAD_DIM, num_gqa_groups=groups, qkv_format="thd", attn_mask_type="padding_causal", attention_dropout=0.0
    ).to(q.device)

    def repeated() -> Tensor:
        wide = [x.repeat_interleave(heads // groups, dim=1) for x in (k, v)]
        return packed_causal_attention(q, wide[0], wide[1], bounds, lengths, scale)

    def engine_attention() -> Tensor:
        out: Tensor = engine(q, k, v, cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=longest, max_seqlen_kv=longest)
        return out

    return {
        "torch varlen": (lambda: packed_causal_attention(q, k, v, bounds, lengths, scale), [q, k, v]),
        "torch varlen, repeated keys and values": (repeated, [q, k, v]),
        "Transformer Engine": (engine_attention, [q, k, v]),
    }


def bench_parts(bench: Bench) -> None:
    """Norms over tokens and over heads, rotation, gated activation."""
    for rows, hidden in ((TOKENS, 1536), (TOKENS, 3584), (TOKENS * 32, HEAD_DIM)):
        x, weight = _leaf(rows, hidden, device=bench.device), _leaf(hidden, device=bench.device)
        variants = _norm_variants(x, weight)
        _compare(bench, f"rmsnorm {rows}x{hidden}", variants, Work("copy", 5.0 * x.nbytes))
    for heads in (2, 12, 28):
        # A view with gaps between tokens, as queries inside a fused projection are.
        x = _leaf(TOKENS, heads + 4, HEAD_DIM, device=bench.device).detach()[:, :heads].requires_grad_()
        work = Work("copy", 4.0 * x.numel() * x.itemsize)
        _compare(bench, f"rotation {TOKENS}x{heads}x{HEAD_DIM}", _rotation_variants(x), work)
    for features in (8960, 18_944):
        gate_up = _leaf(TOKENS, 2 * features, device=bench.device)
        variants = _activation_variants(gate_up)
        _compare(bench, f"swiglu {TOKENS}x{features}", variants, Work("copy", 4.0 * gate_up.nbytes))


def _norm_variants(x: Tensor, weight: Tensor) -> dict[str, Variant]:
    from transformer_engine.pytorch import RMSNorm

    from kernels.rmsnorm.triton import rmsnorm_triton

    engine = RMSNorm(x.shape[-1], eps=1e-6, dtype=x.dtype, device=x.device)
    return {
        "ours": (lambda: rmsnorm_triton(x, weight, 1e-6), [x, weight]),
        "torch": (lambda: torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6), [x, weight]),
        "Transformer Engine": (lambda: engine(x), [x, engine.weight]),
    }


def _activation_variants(gate_up: Tensor) -> dict[str, Variant]:
    from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl

    from kernels.swiglu.triton import swiglu_triton

    return {
        "ours": (lambda: swiglu_triton(gate_up), [gate_up]),
        "Megatron-Core": (lambda: bias_swiglu_impl(gate_up, None), [gate_up]),
    }


def _rotation_variants(x: Tensor) -> dict[str, Variant]:
    from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd

    from kernels.rope.triton import rope_triton

    angles = torch.randn(TOKENS, HEAD_DIM // 2, device=x.device)
    cos, sin, doubled = angles.cos(), angles.sin(), torch.cat((angles, angles), -1)[:, None, None, :]
    return {
        "ours": (lambda: rope_triton(x, cos, sin), [x]),
        "Megatron-Core, unfused": (lambda: _apply_rotary_pos_emb_bshd(x[:, None], doubled)[:, 0], [x]),
    }


def _leaf(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).bfloat16().requires_grad_()


if __name__ == "__main__":
    sys.exit(main())
