"""Tiny model shapes and layouts that the resharding tests share."""

from __future__ import annotations

from megatron_rl.config.model import ModelConfig, MoeConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors


def tiny_model(
    architecture: str = "qwen2", *, layers: int = 4, heads: int = 4, groups: int = 2, vocab: int = 251, tied: bool = True
) -> ModelConfig:
    """A dense model of one family with odd sizes where they can be odd."""
    return ModelConfig(
        name=f"tiny_{architecture}",
        architecture=architecture,
        num_layers=layers,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=4,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture.startswith("qwen3"),
        moe=MoeConfig(num_experts=6, experts_per_token=2, expert_intermediate_size=8, num_dense_layers=1)
        if architecture == "qwen3_moe"
        else None,
    )


def plan_sync(
    model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout, *, itemsize: int = 4, budget_bytes: int = 1 << 20
) -> ReshardPlan:
    """Plan actor to engine."""
    return plan_reshard(
        logical_tensors(model),
        megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor)),
        train.ranks,
        vllm_rules_layout(model, rollout),
        range(rollout.offset, rollout.offset + rollout.world_size),
        itemsize=itemsize,
        budget_bytes=budget_bytes,
    )
