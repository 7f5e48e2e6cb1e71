"""Counts of one rank against the layouts that really cut the weights."""

from __future__ import annotations

import pytest

from megatron_rl.config.model import ModelConfig, MoeConfig
from megatron_rl.estimator.flops import Head
from megatron_rl.estimator.parameters import engine_parameters, rank_parameters, total_parameters
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.spec import RankFragments
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from tests.estimator.shapes import small_model

SHAPES = {
    "llama_tied": small_model(),
    "qwen2_untied": small_model(architecture="qwen2", qkv_bias=True, tie_word_embeddings=False),
    "qwen3": small_model(architecture="qwen3", qk_norm=True, head_dim=4),
}


def stored(fragments: RankFragments) -> int:
    return sum(fragment.num_elements for fragment in fragments)


@pytest.mark.parametrize("head", ["lm", "value"])
@pytest.mark.parametrize("tensor,pipeline", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_rank_parameters_matches_reference(shape: str, tensor: int, pipeline: int, head: Head) -> None:
    model = SHAPES[shape]
    layout = ParallelLayout(tensor=tensor, pipeline=pipeline)
    cut = megatron_layout(model, layout, padded_vocab_size(64, tensor), value_head=head == "value")
    for stage in range(pipeline):
        value_weight = model.hidden_size if head == "value" and stage == pipeline - 1 else 0
        expected = stored(cut(layout.rank(pipeline=stage))) + value_weight
        assert rank_parameters(model, layout, stage, head).total == expected


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_engine_parameters_matches_reference(shape: str, tensor: int) -> None:
    model = SHAPES[shape]
    assert engine_parameters(model, tensor) == stored(vllm_rules_layout(model, RolloutLayout(tensor=tensor))(0))


def test_rank_parameters_counts_vocabulary_padding() -> None:
    padded = rank_parameters(small_model(vocab_size=65), ParallelLayout(), 0).total
    assert padded - rank_parameters(small_model(vocab_size=64), ParallelLayout(), 0).total == 64 * 8


def moe_model() -> ModelConfig:
    moe = MoeConfig(num_experts=4, experts_per_token=2, expert_intermediate_size=8, num_dense_layers=1)
    return small_model(architecture="qwen3_moe", moe=moe)


def test_rank_parameters_cuts_experts_over_their_own_ranks() -> None:
    layout = ParallelLayout(tensor=2, data=2, expert=4, expert_tensor=1)
    parameters = rank_parameters(moe_model(), layout, 0)
    assert parameters.routed == 3 * 8 * 8 * 4 // 4
    whole = rank_parameters(moe_model(), ParallelLayout(), 0)
    assert whole.routed == 3 * 8 * 8 * 4
    assert whole.total == total_parameters(moe_model())
