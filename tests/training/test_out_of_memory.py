"""A failed allocation inside a phase becomes one block: phase, plan, measurement, two settings."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.config.loading import compose
from megatron_rl.estimator.memory_part import MemoryPart, PhaseMemory
from megatron_rl.training.memory_advice import settings_to_change
from megatron_rl.training.out_of_memory import MemoryAdvisor, OutOfMemoryInPhaseError

GIB = 2**30
READING = {"allocated": 131.0, "reserved": 133.0, "reserved_end": 132.0, "allocated_end": 130.0, "device": 139.0, "cpu": 4.0}


class FixedGauge:
    def restart(self) -> None:
        raise AssertionError("a failure is read, not restarted")

    def read(self) -> dict[str, float]:
        return READING


def _advisor(*overrides: str) -> MemoryAdvisor:
    parts = (MemoryPart("actor", "weights", 3 * GIB), MemoryPart("actor", "working memory", 60 * GIB))
    config = compose(["experiment=tiny_cpu", *overrides])
    return MemoryAdvisor(config, 3, {"update actor": PhaseMemory("update actor", parts)}, FixedGauge())


def test_explained_names_phase_plan_measurement_and_two_settings() -> None:
    with pytest.raises(OutOfMemoryInPhaseError) as caught, _advisor("rollout.free_cache_engine=true").explained("update_actor"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total\nmore")
    assert str(caught.value).splitlines() == [
        "out of memory in phase update_actor on rank 3: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "  planned:  63.0 GiB, of which actor working memory 60.0, actor weights 3.0",
        "  measured: 131.0 GiB allocated by torch at the peak of this phase, 132.0 reserved now; 139.0 in use on the card, "
        "7.0 of it outside of torch (the engine's pool, CUDA graphs, communicators, other processes)",
        "  change one of these, or both:",
        "    actor.ppo_max_token_len_per_gpu=8192 (now 16384): smaller micro-batches, same result",
        "    actor.recompute.granularity=full (now null): keeps one activation a layer, a quarter more computation",
    ]


def test_settings_to_change_of_an_actor_alone_concern_it_alone() -> None:
    config = compose(["experiment=tiny_cpu", "actor.recompute.granularity=full"])
    settings = settings_to_change(config, "update_actor", alone=True)
    assert [setting.split(" ")[0] for setting in settings] == [
        "actor.ppo_max_token_len_per_gpu=8192",
        "actor.parallel.pipeline=2",
    ]


def test_settings_to_change_are_settings_that_work() -> None:
    """Micro-batches of one sample cannot shrink, two key/value heads allow no more than TP2, four layers no more than PP4."""
    smallest = ["data.max_prompt_length=16", "data.max_response_length=16", "actor.ppo_max_token_len_per_gpu=32"]
    full = ["experiment=tiny_cpu", *smallest, "actor.recompute.granularity=full"]
    alone = settings_to_change(compose([*full, "actor.parallel.pipeline=4"]), "update_actor", alone=True)
    assert alone == ["data.max_response_length=8 (now 16): shorter samples, another task for the policy"]
    settings = settings_to_change(compose([*full, "rollout.free_cache_engine=true"]), "update_actor")
    assert [setting.split("=")[0] for setting in settings] == ["actor.grad_offload", "actor.optimizer_offload"]
    one = compose(["experiment=tiny_cpu", "weight_sync.budget_mib=1"])
    assert settings_to_change(one, "update_weights")[0].startswith("actor.grad_offload=true")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:62"), RuntimeError("rollout failed: OutOfMemoryError: x")],
    ids=["engine-pool", "quoted"],
)
def test_explained_recognises_allocators_other_than_torch(error: Exception) -> None:
    with pytest.raises(OutOfMemoryInPhaseError, match="phase gen on rank 3"), _advisor().explained("gen"):
        raise error


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), _advisor().explained("gen"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("phase", "overrides", "first", "second"),
    [
        ("gen", ("rollout.kv_cache_gib=8",), "actor.grad_offload=true", "actor.optimizer_offload=true"),
        (
            "gen",
            ("rollout.kv_cache_gib=8", "actor.grad_offload=true", "actor.optimizer_offload=true"),
            "rollout.kv_cache_gib=4",
            "rollout.max_num_seqs=128",
        ),
        (
            "gen",
            ("actor.grad_offload=true", "actor.optimizer_offload=true"),
            "rollout.gpu_memory_utilization=0.35",
            "rollout.max_num_seqs=128",
        ),
        ("old_log_prob", (), "actor.ppo_max_token_len_per_gpu=8192", "rollout.free_cache_engine=true"),
        ("values", ("algorithm=ppo",), "critic.ppo_max_token_len_per_gpu=8192", "rollout.free_cache_engine=true"),
        ("update_actor", (), "rollout.free_cache_engine=true", "actor.ppo_max_token_len_per_gpu=8192"),
        (
            "update_critic",
            ("algorithm=ppo", "rollout.free_cache_engine=true", "critic.recompute.granularity=full"),
            "critic.ppo_max_token_len_per_gpu=8192",
            "actor.grad_offload=true",
        ),
        ("update_weights", (), "weight_sync.budget_mib=64", "actor.grad_offload=true"),
        (
            "update_actor",
            ("rollout.free_cache_engine=true", "actor.use_dynamic_bsz=false", "actor.ppo_micro_batch_size_per_gpu=6"),
            "actor.ppo_micro_batch_size_per_gpu=3",
            "actor.recompute.granularity=full",
        ),
    ],
)
def test_settings_to_change_belong_to_the_phase(phase: str, overrides: tuple[str, ...], first: str, second: str) -> None:
    settings = settings_to_change(compose(["experiment=tiny_cpu", *overrides]), phase)
    assert [setting.split(" ")[0] for setting in settings] == [first, second]
