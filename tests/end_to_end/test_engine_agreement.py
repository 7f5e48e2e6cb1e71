"""The third corner: what vLLM samples has the same log-probs in Megatron and in transformers, before and after a sync."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from megatron_rl.cli.compose import compose_run
from tests.end_to_end.engine_agreement import Agreement, engine_agreement
from tests.end_to_end.policies import FAMILIES, write_policy
from tests.support.distributed import run_distributed

pytestmark = pytest.mark.vllm

CASES = {
    "qwen2-tp2-to-tp2": (2, "qwen2", {"tensor": 2}, 2),
    "qwen2-tp2-to-tp1dp2": (2, "qwen2", {"tensor": 2}, 1),
    "qwen2-pp2-to-tp2": (2, "qwen2", {"pipeline": 2}, 2),
    "llama_tied-pp2-to-tp1dp2": (2, "llama_tied", {"pipeline": 2, "virtual_pipeline": 2}, 1),
    "llama_tied-dp2-to-tp2": (2, "llama_tied", {"data": 2}, 2),
    "qwen3-tp2-to-tp1dp2": (2, "qwen3", {"tensor": 2, "sequence_parallel": True}, 1),
    "qwen3-pp2-to-tp2": (2, "qwen3", {"pipeline": 2}, 2),
    "llama_tied-tp2pp2-to-tp2dp2": (4, "llama_tied", {"tensor": 2, "pipeline": 2}, 2),
    "qwen2-tp2dp2-to-tp4": (4, "qwen2", {"tensor": 2, "data": 2}, 4),
    "llama_tied-pp2dp2-to-tp1dp4": (4, "llama_tied", {"pipeline": 2, "data": 2}, 1),
    "llama_mha-tp4-to-tp2dp2": (4, "llama_mha", {"tensor": 4}, 2),
}
"""Ranks, family, the actor's degrees, the engine's tensor-parallel degree (the rest is its data parallelism).

In the last an engine's ranks are not consecutive: 0 and 2, 1 and 3.
"""
NODES = {"llama_tied-pp2dp2-to-tp1dp4": 2}
"""Ranks as if on several nodes: each stage is on a node of its own, so engines of a node share what they lack."""
COPIED = ("qwen3-pp2-to-tp2", "llama_tied-dp2-to-tp2")
"""Run with weight_sync.alias=false; elsewhere the engine reads in place what it can."""


@pytest.fixture(scope="module")
def agreements(tmp_path_factory: pytest.TempPathFactory):
    """Answers of all cases of a number of ranks, from one process group."""
    folder: Path = tmp_path_factory.mktemp("agreement")
    policies = {family: write_policy(folder / "policies" / family, family) for family in (*FAMILIES, "llama_mha")}

    @cache
    def of_world(world_size: int) -> list[dict[str, list[Agreement]]]:
        configs = {
            name: compose_run(
                [
                    "experiment=tiny_cpu",
                    f"model.path='{policies[family]}'",
                    "data.max_response_length=6",
                    "rollout.n=2",
                    "rollout.temperature=1.2",
                    "rollout.ignore_eos=true",
                    f"rollout.tensor_parallel_size={rollout_tensor}",
                    f"trainer.nnodes={NODES.get(name, 1)}",
                    "weight_sync.budget_mib=1",
                    f"weight_sync.alias={'false' if name in COPIED else 'true'}",
                    "actor.parallel.tensor=1",
                    *(f"actor.parallel.{key}={str(value).lower()}" for key, value in degrees.items()),
                ]
            )
            for name, (needed, family, degrees, rollout_tensor) in CASES.items()
            if needed == world_size
        }
        return run_distributed(world_size, engine_agreement, configs, folder)

    return of_world


@pytest.mark.parametrize("case", CASES)
def test_synced_engine_matches_reference(case: str, agreements) -> None:
    for rank in agreements(CASES[case][0]):
        for found in rank[case]:
            assert found.sampled_tokens == 7 * 2 * 6
            assert found.trainer_difference <= 1e-4
            assert found.reference_difference <= 1e-4


@pytest.mark.parametrize("case", CASES)
def test_sync_writes_what_the_engines_own_loader_would(case: str, agreements) -> None:
    for rank in agreements(CASES[case][0]):
        for found in rank[case]:
            assert found.num_parameters > 4 * 6
            assert not found.unequal_parameters
            assert found.bound_ratio >= 1.0
            assert (found.aliased_bytes > 0) == (case not in COPIED)


def test_sync_moves_what_the_order_of_the_ranks_says(agreements) -> None:
    """TP2 x DP2 -> TP4: the run lays data replicas side by side, and only key/value heads that engines repeat are left."""
    config = compose_run(["experiment=tiny_cpu", "actor.parallel.tensor=2", "rollout.tensor_parallel_size=4"])
    assert config.weight_sync.permute
    for rank in agreements(4):
        assert {found.received_bytes for found in rank["qwen2-tp2dp2-to-tp4"]} == {0.0}


def test_engines_over_distant_ranks_receive_the_bound(agreements) -> None:
    """TP4 -> TP2 x DP2: each rank lacks half of what its shard needs, together once the weights that are cut."""
    hidden, intermediate, vocab, layers = 128, 96, 263, 4
    cut = layers * (4 * hidden * hidden + 3 * hidden * intermediate) + 2 * vocab * hidden
    for rank in agreements(4):
        assert {found.received_bytes for found in rank["llama_mha-tp4-to-tp2dp2"]} == {4.0 * cut}
