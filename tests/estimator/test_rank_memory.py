from __future__ import annotations

from megatron_rl.config.loading import compose
from megatron_rl.estimator.parameters import total_parameters
from megatron_rl.estimator.rank_memory import GIB, rank_memory


def parts_of(*overrides: str, world: int = 1) -> dict[str, int]:
    return dict(rank_memory(compose(overrides), world, on_gpu=True).parts)


def test_rank_memory_matches_hand_computed() -> None:
    parts = parts_of("model=qwen2_5_1_5b", "algorithm=grpo", "rollout.kv_cache_gib=4")
    count = total_parameters(compose(["model=qwen2_5_1_5b"]).model)
    assert parts["actor weights"] == 2 * count
    assert parts["actor gradients"] == 4 * count
    assert parts["actor optimizer"] == 12 * count
    assert parts["engine weights"] == 2 * count
    assert parts["engine KV cache"] == 4 * GIB
    assert parts["actor activations"] == 16384 * 1536 * 28 * 34


def test_rank_memory_shrinks_with_the_layout() -> None:
    one = parts_of("model=qwen2_7b", "algorithm=ppo")
    cut = parts_of("model=qwen2_7b", "algorithm=ppo", "actor.parallel.tensor=2", "actor.parallel.pipeline=2", world=8)
    assert cut["actor weights"] == one["actor weights"] // 4
    assert cut["actor optimizer"] == one["actor optimizer"] // 8
    assert cut["critic weights"] == one["critic weights"]


def test_rank_memory_counts_reference_only_where_used() -> None:
    assert "reference weights" not in parts_of("algorithm=grpo")
    assert "reference weights" in parts_of("algorithm=grpo", "actor.use_kl_loss=true")


def test_least_bytes_takes_the_largest_phase_only() -> None:
    memory = rank_memory(compose(["model=qwen2_7b", "algorithm=ppo", "rollout.kv_cache_gib=1"]), 1, on_gpu=True)
    passing = [size for _, size in memory.passing]
    assert memory.least_bytes == sum(size for _, size in memory.resident) + max(passing)
    assert memory.least_bytes < sum(size for _, size in memory.parts)
