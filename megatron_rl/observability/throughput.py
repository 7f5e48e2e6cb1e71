"""Speed of a step, from token counts, seconds and the model's shape. Pure arithmetic; padding never counts."""

from __future__ import annotations

from collections.abc import Iterable

from megatron_rl.config.model import ModelConfig


def tokens_per_second(num_tokens: int, seconds: float) -> float:
    """Tokens of the whole job per second (``perf/tokens_per_second``)."""
    return num_tokens / seconds


def throughput(num_tokens: int, seconds: float, num_devices: int) -> float:
    """Tokens per second and device (``perf/throughput``)."""
    return num_tokens / (seconds * num_devices)


def matmul_parameters(model: ModelConfig) -> int:
    """Weights each token is multiplied with: attention, MLP (of a MoE the active experts) and head, not the embedding."""
    hidden = model.hidden_size
    query = model.num_attention_heads * model.kv_channels
    key_value = model.num_key_value_heads * model.kv_channels
    attention = hidden * (query + 2 * key_value) + query * hidden
    dense_mlp = 3 * hidden * model.intermediate_size
    if model.moe is None:
        mlps = model.num_layers * dense_mlp
    else:
        active = model.moe.experts_per_token + model.moe.num_shared_experts
        expert_mlp = hidden * model.moe.num_experts + 3 * hidden * model.moe.expert_intermediate_size * active
        mlps = model.moe.num_dense_layers * dense_mlp + (model.num_layers - model.moe.num_dense_layers) * expert_mlp
    return model.num_layers * attention + mlps + hidden * model.vocab_size


def forward_flops(model: ModelConfig, lengths: Iterable[int]) -> float:
    """FLOPs of one forward over documents of ``lengths`` tokens.

    ``2 P sum(s) + 2 L n_heads d sum(s^2)``: P as above, causal attention counted at half of the square.

    Raises:
        ValueError: latent attention, whose shape this formula does not know.
    """
    if model.mla is not None:
        raise ValueError(f"model.mla of {model.name}: FLOPs of latent attention are not defined here")
    lengths = list(lengths)
    attention = 2 * model.num_layers * model.num_attention_heads * model.kv_channels * sum(s * s for s in lengths)
    return float(2 * matmul_parameters(model) * sum(lengths) + attention)


def train_flops(model: ModelConfig, lengths: Iterable[int]) -> float:
    """FLOPs of forward and backward: three forwards. Recomputation is not counted as useful work."""
    return 3 * forward_flops(model, lengths)


def mfu(flops: float, seconds: float, num_devices: int, peak_flops_per_s: float) -> float:
    """Model FLOPs utilisation: useful FLOP/s over the peak of all devices. Above 1 something was measured wrong."""
    return flops / (seconds * num_devices * peak_flops_per_s)
