"""FLOPs of a forward and of a training pass over documents. Recomputation is never counted here.

``2 P sum(s) + C sum(s^2)`` for documents of ``s`` tokens: ``P`` weights each token is multiplied with, ``C`` the causal
attention at half of the square (Kaplan et al. 2020, section 2.1, with the attention term kept).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from megatron_rl.config.model import ModelConfig

Head = Literal["lm", "value"]
BACKWARD_FORWARDS = 2
"""A backward pass costs this many forwards."""


def matmul_parameters(model: ModelConfig, head: Head = "lm") -> int:
    """Weights each token is multiplied with: attention, MLP (of a MoE the active experts) and head, not the embedding."""
    hidden = model.hidden_size
    dense_mlp = 3 * hidden * model.intermediate_size
    if model.moe is None:
        mlps = model.num_layers * dense_mlp
    else:
        active = model.moe.experts_per_token + model.moe.num_shared_experts
        expert_mlp = hidden * model.moe.num_experts + 3 * hidden * model.moe.expert_intermediate_size * active
        mlps = model.moe.num_dense_layers * dense_mlp + (model.num_layers - model.moe.num_dense_layers) * expert_mlp
    head_rows = model.vocab_size if head == "lm" else 1
    return model.num_layers * _attention_weights(model) + mlps + hidden * head_rows


def _attention_weights(model: ModelConfig) -> int:
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.mla is None:
        query, key_value = heads * model.kv_channels, model.num_key_value_heads * model.kv_channels
        return hidden * (query + 2 * key_value) + query * hidden
    mla = model.mla
    query_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    query = mla.q_lora_rank * (hidden + heads * query_dim)
    down = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query + down + up + heads * mla.v_head_dim * hidden


def attention_flops_per_square(model: ModelConfig) -> int:
    """FLOPs of causal attention per squared document length: scores and weighted sum, half of the square."""
    if model.mla is None:
        dims = 2 * model.kv_channels
    else:
        dims = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim + model.mla.v_head_dim
    return model.num_layers * model.num_attention_heads * dims


def forward_flops(model: ModelConfig, lengths: Iterable[int], head: Head = "lm") -> float:
    """FLOPs of one forward over documents of ``lengths`` tokens."""
    lengths = list(lengths)
    attention = attention_flops_per_square(model) * sum(s * s for s in lengths)
    return float(2 * matmul_parameters(model, head) * sum(lengths) + attention)


def train_flops(model: ModelConfig, lengths: Iterable[int], head: Head = "lm") -> float:
    """FLOPs of forward and backward: three forwards. Recomputation is not counted as useful work."""
    return (1 + BACKWARD_FORWARDS) * forward_flops(model, lengths, head)


def decode_flops(model: ModelConfig, context_tokens: float) -> float:
    """FLOPs of generating one token after ``context_tokens``: one row of the attention, every weight once."""
    return 2 * matmul_parameters(model) + 2 * attention_flops_per_square(model) * context_tokens
