"""Parameter counts from a model's shape: whole, and of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.flops import Head
from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size


def attention_parameters(model: ModelConfig) -> int:
    """Weights of one attention block, biases and norms over heads included."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.mla is not None:
        mla = model.mla
        query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        query = hidden * mla.q_lora_rank + mla.q_lora_rank * (1 + heads * query_dim)
        key_value = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        key_value += mla.kv_lora_rank * (1 + heads * (mla.qk_nope_head_dim + mla.v_head_dim))
        return query + key_value + heads * mla.v_head_dim * hidden
    projected = (heads + 2 * model.num_key_value_heads) * model.kv_channels
    bias = projected if model.qkv_bias else 0
    norms = 2 * model.kv_channels if model.qk_norm else 0
    return hidden * projected + bias + norms + heads * model.kv_channels * hidden


def mlp_parameters(model: ModelConfig, layer: int) -> int:
    """Weights of one layer's gated MLP, or of its router and all of its experts."""
    moe = model.moe
    if moe is None or layer < moe.num_dense_layers:
        return 3 * model.hidden_size * model.intermediate_size
    experts = moe.num_experts + moe.num_shared_experts
    router = model.hidden_size * moe.num_experts + (moe.num_experts if model.mla is not None else 0)
    return 3 * model.hidden_size * moe.expert_intermediate_size * experts + router


def embedding_parameters(model: ModelConfig) -> int:
    """Input embedding, and the output layer where it is not tied."""
    return model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)


def total_parameters(model: ModelConfig) -> int:
    """All weights of the checkpoint."""
    per_layer = attention_parameters(model) + 2 * model.hidden_size
    layers = sum(per_layer + mlp_parameters(model, layer) for layer in range(model.num_layers))
    return layers + model.hidden_size + embedding_parameters(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """One layer by how it is cut."""

    cut: int
    """Over the tensor-parallel ranks."""
    replicated: int
    """On every rank: norms, router, down-projections of latent attention."""
    routed: int
    """Routed experts, over expert * expert_tensor ranks."""


@cache
def layer_parts(model: ModelConfig, layer: int) -> LayerParts:
    """Split one layer's weights by how Megatron-Core and vLLM cut them."""
    replicated = 2 * model.hidden_size
    if model.mla is not None:
        mla = model.mla
        replicated += model.hidden_size * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim)
        replicated += mla.q_lora_rank + mla.kv_lora_rank
    elif model.qk_norm:
        replicated += 2 * model.kv_channels
    mlp, moe, routed = mlp_parameters(model, layer), model.moe, 0
    if moe is not None and layer >= moe.num_dense_layers:
        routed = 3 * model.hidden_size * moe.expert_intermediate_size * moe.num_experts
        shared = 3 * model.hidden_size * moe.expert_intermediate_size * moe.num_shared_experts
        replicated += mlp - routed - shared
    total = attention_parameters(model) + 2 * model.hidden_size + mlp
    return LayerParts(cut=total - replicated - routed, replicated=replicated, routed=routed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters:
    """Weights one rank stores."""

    dense: int
    """Replicated over the data-parallel ranks."""
    routed: int
    """Routed experts, replicated over the expert-data-parallel ranks."""

    @property
    def total(self) -> int:
        """Both."""
        return self.dense + self.routed


def stage_range(model: ModelConfig, layout: ParallelLayout, stage: int) -> range:
    """Layers of a pipeline stage, as many as any; chunks of an interleaved pipeline hold equally many."""
    size = -(-model.num_layers // layout.pipeline)
    return range(stage * size, min(model.num_layers, (stage + 1) * size))


@cache
def rank_parameters(model: ModelConfig, layout: ParallelLayout, stage: int, head: Head = "lm") -> RankParameters:
    """Weights of a Megatron-Core rank on pipeline stage ``stage``, vocabulary padding included."""
    tensor = layout.tensor
    parts = [layer_parts(model, layer) for layer in stage_range(model, layout, stage)]
    dense = sum(part.cut // tensor + part.replicated for part in parts)
    vocab_rows = padded_vocab_size(model.vocab_size, tensor) // tensor * model.hidden_size
    if stage == 0:
        dense += vocab_rows
    if stage == layout.pipeline - 1:
        dense += model.hidden_size
        if head == "value":
            dense += model.hidden_size
        elif not model.tie_word_embeddings or layout.pipeline > 1:
            dense += vocab_rows
    return RankParameters(dense=dense, routed=sum(part.routed for part in parts) // (layout.expert * layout.etp))


def engine_vocab_size(model: ModelConfig) -> int:
    """Vocabulary rows of all engine ranks together, vLLM's padding included."""
    return -(-model.vocab_size // 64) * 64


@cache
def engine_parameters(model: ModelConfig, tensor: int) -> int:
    """Weights of one engine rank; key/value heads are held by several ranks where TP exceeds their number."""
    parts = [layer_parts(model, layer) for layer in range(model.num_layers)]
    count = sum((part.cut + part.routed) // tensor + part.replicated for part in parts) + model.hidden_size
    if model.mla is None and tensor > model.num_key_value_heads:
        columns = model.hidden_size + (1 if model.qkv_bias else 0)
        held = 2 * model.kv_channels * columns
        count += model.num_layers * (held - held * model.num_key_value_heads // tensor)
    copies = 1 if model.tie_word_embeddings else 2
    return count + copies * engine_vocab_size(model) // tensor * model.hidden_size


def engine_linear_parameters(model: ModelConfig, tensor: int) -> int:
    """Weights of a dense model's linear layers on one engine rank, without biases: what FP8 quantisation covers."""
    heads = model.num_attention_heads // tensor
    groups = max(1, model.num_key_value_heads // tensor)
    attention = (2 * heads + 2 * groups) * model.kv_channels
    return model.num_layers * model.hidden_size * (attention + 3 * model.intermediate_size // tensor)
