"""Memory of one rank of the rollout engine, and how much KV cache a workload wants."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.rollout import FP8_BLOCK
from megatron_rl.estimator.deployment import Deployment, EngineSetup, Workload
from megatron_rl.estimator.memory_part import MemoryPart, Phase
from megatron_rl.estimator.parameters import engine_linear_parameters, engine_parameters, stage_range
from megatron_rl.estimator.shared_weights import engine_own_parameters

KV_BLOCK_TOKENS = 16
"""The cache is handed out in blocks of this many tokens."""
_SAMPLER_COPIES = 3
"""f32 matrices [sequences, vocabulary] the sampler holds: logits, their log-softmax, a sorted or masked copy."""


def kv_bytes_per_token(model: ModelConfig, tensor: int, weight_bytes: int) -> int:
    """KV cache of one token on one engine rank, bytes; a key/value head lives on several ranks where TP exceeds them."""
    if model.mla is not None:
        return model.num_layers * (model.mla.kv_lora_rank + model.mla.qk_rope_head_dim) * weight_bytes
    heads = max(1, model.num_key_value_heads // tensor)
    return model.num_layers * 2 * heads * model.kv_channels * weight_bytes


def wanted_kv_bytes(model: ModelConfig, workload: Workload, engine: EngineSetup, weight_bytes: int) -> int:
    """Cache with which every sequence that may run at once can reach its full length."""
    samples = -(-workload.samples_per_step // engine.data)
    return min(samples, engine.max_num_seqs) * sequence_kv_bytes(model, workload, engine.tensor, weight_bytes)


def sequence_kv_bytes(model: ModelConfig, workload: Workload, tensor: int, weight_bytes: int) -> int:
    """Cache of one longest sample, whole blocks."""
    blocks = -(-workload.longest_sample_tokens // KV_BLOCK_TOKENS)
    return blocks * KV_BLOCK_TOKENS * kv_bytes_per_token(model, tensor, weight_bytes)


def workspace_bytes(model: ModelConfig, engine: EngineSetup, weight_bytes: int) -> int:
    """Activations of the engine's largest iteration, and the sampler's matrices."""
    body = engine.max_num_batched_tokens * weight_bytes * (3 * model.intermediate_size // engine.tensor + 4 * model.hidden_size)
    sampler = engine.max_num_seqs * model.vocab_size * 4 * _SAMPLER_COPIES
    return max(body, sampler)


def engine_parts(deployment: Deployment, phase: Phase, stage: int, fixed_bytes: int) -> Iterator[MemoryPart]:
    """What the engine holds in a phase, on a rank that has pipeline stage ``stage`` of the actor.

    Asleep it keeps its CUDA graphs and buffers only. Weights it shares with the actor count as the actor's.
    """
    engine, model = deployment.engine, deployment.model
    if engine is None:
        return
    if not engine.sleeps or phase in ("rollout", "switch-over"):
        yield MemoryPart("engine", "weights", _weight_bytes(deployment, engine, stage))
    if not engine.sleeps or phase == "rollout":
        yield MemoryPart("engine", "KV cache", engine.kv_cache_bytes)
    if engine.cuda_graphs:
        yield MemoryPart("engine", "CUDA graphs and buffers", fixed_bytes)
    if phase == "rollout":
        yield MemoryPart("engine", "workspace", workspace_bytes(model, engine, deployment.weight_bytes))


def _weight_bytes(deployment: Deployment, engine: EngineSetup, stage: int) -> int:
    """Weights that are the engine's own; in FP8 a linear weight takes one byte, and each of its blocks four."""
    model, actor, linear_shared = deployment.model, deployment.role("actor"), 0
    own = engine_parameters(model, engine.tensor)
    linear = engine_linear_parameters(model, engine.tensor)
    if engine.aliased and actor is not None:
        own = engine_own_parameters(model, actor.layout, engine.tensor, stage)
        if actor.layout.tensor == engine.tensor:
            linear_shared = linear * len(stage_range(model, actor.layout, stage)) // model.num_layers
    if not engine.quantised:
        return own * deployment.weight_bytes
    plain = own - (linear - linear_shared)
    return plain * deployment.weight_bytes + linear + 4 * linear // FP8_BLOCK**2
