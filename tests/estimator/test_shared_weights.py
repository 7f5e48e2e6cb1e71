"""The closed form of shared weights against the planner's aliases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_rl.estimator.engine_memory import engine_parts
from megatron_rl.estimator.parameters import engine_parameters
from megatron_rl.estimator.shared_weights import engine_own_parameters
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.aliasing import with_aliases
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors
from tests.estimator.shapes import small_deployment, small_model

LAYOUTS = [
    (ParallelLayout(), 1),
    (ParallelLayout(tensor=2), 2),
    (ParallelLayout(tensor=2), 1),
    (ParallelLayout(data=2), 2),
    (ParallelLayout(pipeline=2), 1),
    (ParallelLayout(pipeline=2), 2),
    (ParallelLayout(tensor=2, pipeline=2), 2),
    (ParallelLayout(tensor=2, data=2), 4),
]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("train,rollout", LAYOUTS, ids=[f"tp{t.tensor}pp{t.pipeline}dp{t.data}-tp{r}" for t, r in LAYOUTS])
def test_engine_own_parameters_matches_reference(train: ParallelLayout, rollout: int, tied: bool) -> None:
    model = small_model(
        num_layers=4, num_key_value_heads=4, tie_word_embeddings=tied, qkv_bias=True, architecture="qwen2", vocab_size=256
    )
    planned = plan_reshard(
        logical_tensors(model),
        megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor)),
        train.ranks,
        vllm_rules_layout(model, RolloutLayout(tensor=rollout, data=train.world_size // rollout)),
        train.ranks,
        itemsize=1,
        budget_bytes=2**20,
    )
    plan, whole = with_aliases(planned), engine_parameters(model, rollout)
    for stage in range(train.pipeline):
        own = {
            whole - (plan.costs[rank].aliased_bytes if rank in plan.costs else 0)
            for rank in train.ranks
            if train.coordinates(rank).pipeline == stage
        }
        assert max(own) == engine_own_parameters(model, train, rollout, stage)


def test_quantised_engine_matches_hand_computed() -> None:
    """Linear weights take a byte each and four for each block, aliased or not; the rest is shared or takes two bytes."""
    deployment = small_deployment()
    assert deployment.engine is not None
    # Two layers of hidden 8: query and output 8 x 8, key and value 8 x 4, three matrices of 8 x 16.
    linear = 2 * (2 * 64 + 2 * 32 + 3 * 128)
    in_fp8 = linear + 4 * linear // 128**2
    for aliased, plain in ((True, 0), (False, 2 * (engine_parameters(deployment.model, 1) - linear))):
        engine = replace(deployment.engine, quantised=True, aliased=aliased)
        parts = engine_parts(replace(deployment, engine=engine), "rollout", 0, 0)
        assert next(parts).size_bytes == plain + in_fp8
