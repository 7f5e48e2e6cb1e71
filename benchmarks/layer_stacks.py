"""Whole layers as training runs them, under both layer specs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.harness import Bench, Row, Work
from megatron_rl.config.model import ModelConfig, TransformerImpl
from megatron_rl.config.training import OptimConfig
from megatron_rl.data.packing import Packer
from megatron_rl.models.gpt import build_stage, named_local_parameters
from megatron_rl.models.initialise import initialise
from megatron_rl.parallel.groups import GroupRegistry, RoleGroups
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform, init_distributed
from megatron_rl.training.optimizer import wrap_data_parallel
from megatron_rl.types.batches import PackedTokens

TOKENS, DOCUMENT = 16_384, 1024
SPECS: tuple[TransformerImpl, ...] = ("local", "transformer_engine")
QUARTER_OF_1_5B = ModelConfig(
    name="7 layers of the 1.5B shape",
    architecture="qwen2",
    num_layers=7,
    hidden_size=1536,
    intermediate_size=8960,
    num_attention_heads=12,
    num_key_value_heads=2,
    vocab_size=1024,
    qkv_bias=True,
    tie_word_embeddings=True,
)
WHOLE_135M = ModelConfig(
    name="30 layers of the 135M shape",
    architecture="llama",
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=1024,
    tie_word_embeddings=True,
)


def bench_stacks(bench: Bench) -> None:
    """Forward without gradients, and forward with backward into the f32 gradient buffer, of 16,384 tokens."""
    platform = Platform.detect()
    init_distributed(platform, 120, {})
    groups = RoleGroups.build(ParallelLayout(), GroupRegistry())
    for shape in (QUARTER_OF_1_5B, WHOLE_135M):
        for implementation in SPECS:
            _bench_spec(bench, shape.model_copy(update={"transformer_impl": implementation}), groups, platform)
            gc.collect()


def _bench_spec(bench: Bench, model: ModelConfig, groups: RoleGroups, platform: Platform) -> None:
    chunks = build_stage(model, groups, platform)
    initialise(named_local_parameters(chunks, groups), model, groups, 0)
    wrapped = wrap_data_parallel(chunks, groups, OptimConfig())[0].train()
    packed = _pack(bench.device)
    upstream = 1e-3 * torch.randn(TOKENS, 1, model.hidden_size, device=bench.device, dtype=torch.bfloat16)
    step: Callable[[], object] = lambda: wrapped(packed).backward(upstream)  # noqa: E731
    score = torch.no_grad()(lambda: chunks[0](packed))
    case, flops = f"{model.name}, {TOKENS} tokens", _forward_flops(model)
    with groups.as_megatron_globals():
        bench.measure(f"{case}, fwd", str(model.transformer_impl), score, Work("matmul", flops))
        bench.measure(f"{case}, fwd+bwd", str(model.transformer_impl), step, Work("matmul", 3 * flops))
        bench.rows.append(_host_row(f"{case}, fwd+bwd, host only", str(model.transformer_impl), step))
        print(f"  {bench.rows[-1].case} | {bench.rows[-1].variant}: {bench.rows[-1].ms:.3f} ms", flush=True)


def _host_row(case: str, variant: str, step: Callable[[], object]) -> Row:
    """Time until the host has queued a step: where it exceeds the step's, the device waits for the host."""
    times_ms = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        times_ms.append((time.perf_counter() - start) * 1e3)
    return Row(case=case, variant=variant, ms=median(times_ms), low_ms=min(times_ms), high_ms=max(times_ms))


def _forward_flops(model: ModelConfig) -> float:
    query, key = model.num_attention_heads * model.kv_channels, model.num_key_value_heads * model.kv_channels
    hidden = model.hidden_size
    weights = hidden * (2 * query + 2 * key) + 3 * hidden * model.intermediate_size
    pairs = TOKENS // DOCUMENT * DOCUMENT**2
    return float(model.num_layers * (2 * weights * TOKENS + 2 * query * pairs))


def _pack(device: torch.device) -> PackedTokens:
    count = TOKENS // DOCUMENT
    tokens_BS = torch.randint(1024, (count, DOCUMENT))
    packer = Packer(
        tokens_BS=tokens_BS,
        mask_BS=torch.ones_like(tokens_BS, dtype=torch.bool),
        lengths=(DOCUMENT,) * count,
        multiple=1,
        device=device,
    )
    return packer.pack_tokens(tuple(range(count)))
