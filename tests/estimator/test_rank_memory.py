"""Memory of configured runs: which key changes which part."""

from __future__ import annotations

import pytest

from megatron_rl.config.loading import compose
from megatron_rl.estimator.catalogue import GIB
from megatron_rl.estimator.memory_part import PhaseMemory
from megatron_rl.estimator.parameters import total_parameters
from megatron_rl.estimator.rank_memory import memory_table, rank_memory


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
    assert part(update, "engine", "weights") == 0  # the actor's
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


def test_rank_memory_follows_the_optimizers_precision() -> None:
    typed = ["main_grads_dtype=bfloat16", "exp_avg_dtype=bfloat16", "use_precision_aware_optimizer=true"]
    lean = phases_of("model=qwen2_7b", *(f"actor.optim.{key}" for key in typed))["update actor"]
    count = total_parameters(compose(["model=qwen2_7b"]).model)
    assert (part(lean, "actor", "gradients"), part(lean, "actor", "optimizer")) == (2 * count, (2 + 2 + 4) * count)


@pytest.mark.parametrize("layers", ["auto", "local"])
def test_rank_memory_takes_the_adam_that_is_installed(layers: str) -> None:
    """Whatever the layers are made of; torch's makes a copy of all weights, 4 bytes each, in its step."""
    config = compose(["model=qwen2_5_1_5b", f"model.transformer_impl={layers}", "actor.ppo_max_token_len_per_gpu=256"])
    fused, plain = (
        {phase.phase: phase for phase in rank_memory(config, 1, on_gpu=True, fused_adam=fused)} for fused in (True, False)
    )
    assert plain["update actor"].total_bytes - fused["update actor"].total_bytes > 10**9
    assert plain["scoring"].total_bytes == fused["scoring"].total_bytes


def test_rank_memory_follows_what_is_offloaded() -> None:
    typed = ["rollout.free_cache_engine=true", "actor.grad_offload=true", "actor.optimizer_offload=true"]
    rollout = phases_of("model=qwen2_5_1_5b", "algorithm=grpo", "rollout.kv_cache_gib=4", *typed)["rollout"]
    update = phases_of("model=qwen2_5_1_5b", "algorithm=grpo", "rollout.kv_cache_gib=4", *typed)["update actor"]
    assert {p.kind for p in rollout.parts if p.role == "actor"} == {"weights"}
    assert part(update, "engine", "KV cache") == 0 and part(rollout, "engine", "KV cache") == 4 * GIB


def test_rank_memory_of_a_reference_on_its_own_layout() -> None:
    typed = ["algorithm=grpo", "actor.use_kl_loss=true", "actor.parallel.tensor=2", "actor.parallel.sequence_parallel=true"]
    own = phases_of("model=qwen2_7b", *typed, "+ref.parallel.pipeline=2", world=2)["scoring"]
    alike = phases_of("model=qwen2_7b", *typed, world=2)["scoring"]
    assert part(own, "reference", "weights") != part(alike, "reference", "weights") > 0


def test_rank_memory_lets_the_engine_sleep_where_the_card_is_too_small() -> None:
    typed = ["model=qwen2_5_1_5b", "algorithm=grpo", "rollout.kv_cache_gib=40"]
    roomy, tight = (phases_of(*typed, f"launcher.gpu_memory_gib={gib}")["update actor"] for gib in (139, 79))
    assert part(roomy, "engine", "KV cache") == 40 * GIB and part(tight, "engine", "KV cache") == 0
    awake = phases_of(*typed, "launcher.gpu_memory_gib=79", "rollout.free_cache_engine=false")["update actor"]
    assert part(awake, "engine", "KV cache") == 40 * GIB
