"""An engine with block-scaled FP8 weights, written by the sync: one start, one behaviour per test."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from megatron_rl.cli.compose import compose_run
from tests.resharding.fp8_sessions import quantised_engine

pytestmark = [pytest.mark.vllm, pytest.mark.gpu]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    config = compose_run(
        [
            "experiment=tiny_cpu",
            "model.hidden_size=256",
            "model.num_attention_heads=2",
            "model.num_key_value_heads=1",
            "model.num_layers=2",
            "actor.parallel.tensor=1",
            "weight_sync.verify=true",
            "rollout.quantization=fp8_per_block",
            "trainer.device=cuda",
            "trainer.dtype=bfloat16",
            "rollout.kv_cache_gib=4",
            "rollout.max_num_seqs=16",
        ]
    )
    # Fresh, not forked: a parent that has touched CUDA cannot hand it down.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(quantised_engine, config, tmp_path_factory.mktemp("fp8")).result(timeout=240)


def test_engine_holds_fp8_weights_their_scales_and_shares_the_rest(found: dict[str, Any]) -> None:
    assert found["dtypes"] == ["torch.bfloat16", "torch.float32", "torch.float8_e4m3fn"]
    assert found["metrics"]["sync/bytes_aliased"] > 0
    assert found["metrics"]["sync/bytes_copied"] > 0


def test_pushed_weights_equal_vllms_quantisation_of_the_actors(found: dict[str, Any]) -> None:
    assert found["differs"] == found["differs_after_an_update"] == []


def test_push_after_an_update_changes_the_answers(found: dict[str, Any]) -> None:
    assert found["edited"] != found["start"]


@pytest.mark.parametrize("level", [1, 2])
def test_answers_survive_sleep(found: dict[str, Any], level: int) -> None:
    assert found[f"after_sleep_{level}"] == found["edited"]
