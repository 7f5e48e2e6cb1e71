"""The engine reads the actor's own storage: one start per device, one behaviour per test."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from megatron_rl.cli.compose import compose_run
from megatron_rl.config.run import RunConfig
from tests.end_to_end.policies import write_policy
from tests.resharding.alias_sessions import aliased_engine
from tests.support.distributed import run_distributed

pytestmark = pytest.mark.vllm


def _config(folder: Path, device: str, dtype: str) -> RunConfig:
    return compose_run(
        [
            "experiment=tiny_cpu",
            f"model.path='{write_policy(folder / 'policy', 'qwen2', num_layers=2)}'",
            "actor.parallel.tensor=1",
            "weight_sync.verify=true",
            f"trainer.device={device}",
            f"trainer.dtype={dtype}",
            "rollout.kv_cache_gib=0.5",
            "rollout.max_num_seqs=16",
        ]
    )


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alias")
    if request.param == "cpu":
        answer: dict[str, Any] = run_distributed(1, aliased_engine, _config(folder, "cpu", "float32"), folder)[0]
        return answer
    # Fresh, not forked: a parent that has touched CUDA cannot hand it down.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(aliased_engine, _config(folder, "cuda", "bfloat16"), folder).result(timeout=240)


def test_every_parameter_is_aliased_at_equal_layouts(found: dict[str, Any]) -> None:
    assert found["not_aliased"] == []
    assert found["metrics"]["sync/bytes_copied"] == found["metrics"]["sync/bytes_received"] == 0
    assert found["metrics"]["sync/bytes_aliased"] > 0


def test_start_of_the_engine_leaves_the_actor_alone(found: dict[str, Any]) -> None:
    assert found["start_left_the_actor_alone"]
    assert "no valid weights" in found["unsynced"]


def test_edit_of_the_actor_changes_the_answers_after_a_push_only(found: dict[str, Any]) -> None:
    assert "the actor has moved on" in found["edited_and_not_pushed"]
    assert found["edited"] != found["start"]
    assert found["restored"] == found["start"]


@pytest.mark.parametrize("level", [1, 2])
def test_answers_survive_sleep(found: dict[str, Any], level: int) -> None:
    assert "sleeps" in found[f"asleep_{level}"]
    assert found[f"after_sleep_{level}"] == found["start"]


def test_push_rejects_a_parameter_that_has_moved(found: dict[str, Any]) -> None:
    assert "'model.norm.weight' does not share the storage of 'decoder.final_layernorm.weight'" in found["moved_actor"]
    assert "moved 'model.layers.0.input_layernorm.weight'" in found["moved_engine"]
