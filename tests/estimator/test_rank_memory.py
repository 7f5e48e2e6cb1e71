from __future__ import annotations

from megatron_rl.config.loading import compose
from megatron_rl.estimator.memory_part import PhaseMemory
from megatron_rl.estimator.parameters import total_parameters
from megatron_rl.estimator.rank_memory import GIB, memory_table, rank_memory


def phases_of(*overrides: str, world: int = 1) -> dict[str, PhaseMemory]:
    return {phase.phase: phase for phase in rank_memory(compose(overrides), world, on_gpu=True)}


def part(phase: PhaseMemory, role: str, kind: str) -> int:
    return sum(part.size_bytes for part in phase.parts if (part.role, part.kind) == (role, kind))


def test_rank_memory_matches_hand_computed() -> None:
    update = phases_of("model=qwen2_5_1_5b", "algorithm=grpo", "rollout.kv_cache_gib=4")["update actor"]
    count = total_parameters(compose(["model=qwen2_5_1_5b"]).model)
    assert part(update, "actor", "weights") == 2 * count
    assert part(update, "actor", "gradients") == 4 * count
    assert part(update, "actor", "optimizer") == 12 * count
    assert part(update, "engine", "weights") == 2 * count
    assert part(update, "engine", "KV cache") == 4 * GIB


def test_rank_memory_shrinks_with_the_layout() -> None:
    one = phases_of("model=qwen2_7b", "algorithm=ppo")["update actor"]
    cut = phases_of("model=qwen2_7b", "algorithm=ppo", "actor.parallel.tensor=2", "actor.parallel.pipeline=2", world=8)
    assert part(cut["update actor"], "actor", "weights") < 0.3 * part(one, "actor", "weights")
    assert part(cut["update actor"], "actor", "optimizer") < 0.15 * part(one, "actor", "optimizer")
    assert part(cut["update actor"], "critic", "weights") == part(one, "critic", "weights")


def test_rank_memory_counts_reference_only_where_used() -> None:
    assert part(phases_of("algorithm=grpo")["scoring"], "reference", "weights") == 0
    assert part(phases_of("algorithm=grpo", "actor.use_kl_loss=true")["scoring"], "reference", "weights") > 0


def test_memory_table_shows_every_phase_and_the_parts_of_the_largest() -> None:
    phases = phases_of("model=qwen2_7b", "algorithm=ppo", "rollout.kv_cache_gib=1")
    text = memory_table(tuple(phases.values()))
    assert all(name in text for name in phases)
    assert "update actor: actor optimizer" in text
