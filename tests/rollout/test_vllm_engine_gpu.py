"""The real engine on one GPU: what cannot be seen on CPU (CUDA graphs, sleep, bf16)."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from tests.rollout import engine_sessions as sessions
from tests.rollout.gpu_sessions import gpu_engine

pytestmark = [pytest.mark.vllm, pytest.mark.gpu]


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("tiny") / "model"
    sessions.write_model_folder(path, hidden_size=256)
    # Fresh, not forked: a parent that has touched CUDA cannot hand it down.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(gpu_engine, str(path)).result(timeout=240)


def test_engine_leaves_random_states_alone(on_gpu: dict[str, Any]) -> None:
    assert on_gpu["rng_unchanged"]


def test_seeds_decide_the_samples(on_gpu: dict[str, Any]) -> None:
    assert on_gpu["again"] == on_gpu["sampled"]
    assert on_gpu["other_seed"] != on_gpu["sampled"]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_logprobs_match_reference_at_temperature(on_gpu: dict[str, Any], temperature: float) -> None:
    # bf16 activations in both; a wrong temperature would differ by whole nats.
    assert on_gpu["logprob_mean_differences"][temperature] < 0.05


def test_responses_end_where_they_should(on_gpu: dict[str, Any]) -> None:
    assert on_gpu["stop_exactly_at_budget"] == (4, "stop")
    assert on_gpu["no_stop_at_budget"] == (4, "length")


def test_weights_edited_in_place_change_the_answer_and_restored_restore_it(on_gpu: dict[str, Any]) -> None:
    assert on_gpu["edited"] != on_gpu["greedy"] == on_gpu["restored"]


def test_answers_survive_both_sleep_levels(on_gpu: dict[str, Any]) -> None:
    assert on_gpu["after_sleep_1"] == on_gpu["after_sleep_2"] == on_gpu["greedy"]
    assert on_gpu["bytes_freed_by_sleep"] > 3 * 2**30
    assert "sleeps" in on_gpu["asleep"]


def test_deep_sleep_without_an_update_is_refused(on_gpu: dict[str, Any]) -> None:
    assert "sleeps" in on_gpu["weights_dropped"]


def test_generate_never_emits_vocabulary_padding(on_gpu: dict[str, Any]) -> None:
    assert on_gpu["hot_max"] < sessions.VOCAB
