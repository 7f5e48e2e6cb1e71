"""Parameter counts from a model's shape."""

from __future__ import annotations

from megatron_rl.config.model import ModelConfig


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
