"""Whole layers of the 1.5B shape as training runs them, under both layer specs."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from benchmarks.harness import Bench, Work
from megatron_rl.config.model import ModelConfig, TransformerImpl
from megatron_rl.config.training import OptimConfig
from megatron_rl.models.gpt import TransformerStage, build_stage, named_local_parameters
from megatron_rl.models.initialise import initialise
from megatron_rl.parallel.groups import GroupRegistry, RoleGroups
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform, init_distributed
from megatron_rl.training.optimizer import wrap_data_parallel
from megatron_rl.types.batches import PackedTokens

TOKENS, DOCUMENT = 16_384, 1024
NUM_LAYERS = 7
"""A quarter of the 1.5B model."""
SPECS: tuple[TransformerImpl, ...] = ("local", "transformer_engine")


def bench_stacks(bench: Bench) -> None:
    """Forward without gradients, and forward with backward into the f32 gradient buffer, of 16,384 tokens."""
    platform = Platform.detect()
    init_distributed(platform, 120, {})
    groups = RoleGroups.build(ParallelLayout(), GroupRegistry())
    for implementation in SPECS:
        model = _shape(implementation)
        chunks = build_stage(model, groups, platform)
        initialise(named_local_parameters(chunks, groups), model, groups, 0)
        wrapped = wrap_data_parallel(chunks, groups, OptimConfig())[0].train()
        packed = _pack(bench.device)
        with groups.as_megatron_globals():
            _bench_spec(bench, implementation, chunks[0], wrapped, packed, _forward_flops(model))
        del chunks, wrapped
        gc.collect()


def _bench_spec(
    bench: Bench, name: str, stage: TransformerStage, wrapped: torch.nn.Module, packed: PackedTokens, flops: float
) -> None:
    upstream = 1e-3 * torch.randn(TOKENS, 1, stage.config.hidden_size, device=bench.device, dtype=torch.bfloat16)
    step: Callable[[], object] = lambda: wrapped(packed).backward(upstream)  # noqa: E731
    score = torch.no_grad()(lambda: stage(packed))
    case = f"{NUM_LAYERS} layers, 1.5B shape, {TOKENS} tokens"
    bench.measure(f"{case}, fwd", name, score, Work("matmul", flops))
    bench.measure(f"{case}, fwd+bwd", name, step, Work("matmul", 3 * flops))


def _shape(implementation: TransformerImpl) -> ModelConfig:
    """Qwen2.5-1.5B with fewer layers and a small vocabulary."""
    return ModelConfig(
        name="stack",
        architecture="qwen2",
        num_layers=NUM_LAYERS,
        hidden_size=1536,
        intermediate_size=8960,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=1024,
        qkv_bias=True,
        tie_word_embeddings=True,
        transformer_impl=implementation,
    )


def _forward_flops(model: ModelConfig) -> float:
    query, key = model.num_attention_heads * model.kv_channels, model.num_key_value_heads * model.kv_channels
    hidden = model.hidden_size
    weights = hidden * (2 * query + 2 * key) + 3 * hidden * model.intermediate_size
    pairs = TOKENS // DOCUMENT * DOCUMENT**2
    return float(model.num_layers * (2 * weights * TOKENS + 2 * query * pairs))


def _pack(device: torch.device) -> PackedTokens:
    lengths = (DOCUMENT,) * (TOKENS // DOCUMENT)
    tokens = torch.randint(1024, (TOKENS,), device=device)
    return PackedTokens(
        tokens_T=tokens,
        targets_T=tokens,
        predicts_T=torch.ones(TOKENS, dtype=torch.bool, device=device),
        cu_seqlens=torch.arange(0, TOKENS + 1, DOCUMENT, dtype=torch.int32, device=device),
        lengths=lengths,
        rows=tuple(range(len(lengths))),
    )
