"""The real engine on CPU: one start per session, one behaviour per test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rollout import engine_sessions as sessions
from tests.support.distributed import run_distributed

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny") / "model"
    sessions.write_model_folder(path)
    return str(path)


@pytest.fixture(scope="module")
def single(folder: str) -> dict[str, Any]:
    return run_distributed(1, sessions.single_engine, folder)[0]


@pytest.fixture(scope="module")
def pair(folder: str) -> list[dict[str, Any]]:
    """A tensor-parallel engine, started right after one that was killed."""
    run_distributed(2, sessions.killed_engine, folder)
    return run_distributed(2, sessions.tensor_parallel_engine, folder)


def _tokens(plain: list[Any]) -> list[list[list[int]]]:
    return [[ids for ids, _, _ in samples] for samples in plain]


def test_start_leaves_the_process_as_it_was(single: dict[str, Any]) -> None:
    assert single["rng_unchanged_by_start"]
    assert single["local_world_size"] == "3"
    assert single["job_group_survives_shutdown"]


def test_generate_leaves_random_states_alone(single: dict[str, Any]) -> None:
    assert single["rng_unchanged_by_generate"]


def test_parameters_are_plain_and_start_as_zeros(single: dict[str, Any]) -> None:
    shapes = {name: shape for name, (shape, _) in single["parameters"].items()}
    assert shapes["model.layers.1.self_attn.qkv_proj.weight"] == (256, 128)
    assert shapes["lm_head.weight"] == shapes["model.embed_tokens.weight"] == (256, 128)
    assert all(total == 0.0 for _, total in single["parameters"].values())


def test_generate_rejects_an_engine_without_weights(single: dict[str, Any]) -> None:
    assert "no valid weights" in single["unsynced"]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_logprobs_match_reference_at_temperature(single: dict[str, Any], temperature: float) -> None:
    assert single["logprob_differences"][temperature] < 1e-4


def test_logprobs_match_reference_with_top_k_and_greedy(single: dict[str, Any]) -> None:
    assert single["top_k_difference"] < 1e-4
    assert single["greedy_difference"] < 1e-4


def test_generate_invariant_to_order_and_batch(single: dict[str, Any]) -> None:
    first_samples = [[samples[0]] for samples in _tokens(single["sampled"])]
    assert _tokens(single["alone"]) == first_samples
    assert _tokens(single["reversed"]) == _tokens(single["sampled"])
    assert _tokens(single["other_seed"]) != _tokens(single["sampled"])


def test_sample_i_draws_with_the_base_seed_plus_i(single: dict[str, Any]) -> None:
    assert _tokens(single["children"]) == _tokens(single["sampled"])


def test_model_defaults_are_ignored_and_logged_once(single: dict[str, Any]) -> None:
    (warning,) = [text for text in single["warnings"] if "generation_config.json" in text]
    assert "temperature 0.3 (used: 1.0)" in warning and "repetition_penalty 1.2 (used: 1.0)" in warning
    assert single["warnings_after_second_call"] == len(single["warnings"])


def test_responses_end_where_they_should(single: dict[str, Any]) -> None:
    assert single["stop_below_budget"] == (4, "stop")
    assert single["stop_exactly_at_budget"] == (4, "stop")
    assert single["no_stop_at_budget"] == (4, "length")
    assert single["stop_beyond_budget"] == (3, "length")
    assert single["ignored_stop"] == (6, "length")


def test_generate_rejects_eos_ids_only_the_engine_knows(single: dict[str, Any]) -> None:
    assert "ids [7]" in single["unknown_eos"]


def test_generate_rejects_prompts_that_do_not_fit(single: dict[str, Any]) -> None:
    assert "prompt 1 of the batch has 107 tokens" in single["too_long"] and "1 to 106" in single["too_long"]
    assert "has 0 tokens" in single["empty_prompt"]
    assert "model.vocab_size=251" in single["foreign_id"]
    assert single["just_fits"] == 6


def test_weights_edited_in_place_change_the_answer_and_restored_restore_it(single: dict[str, Any]) -> None:
    before, again = single["greedy_before"]
    assert before == again == single["greedy_restored"] == single["greedy_after_sleep"]
    assert single["greedy_edited"] != before
    assert single["version_edited"] == 1


def test_cached_prefixes_of_old_weights_would_be_used_without_a_reset(single: dict[str, Any]) -> None:
    # What finish_weight_update protects from: the same weights as before, but another answer.
    assert single["greedy_stale_cache"] != single["greedy_before"][0]


def test_push_drops_every_cached_block_whichever_way_is_shorter(single: dict[str, Any]) -> None:
    before, after, by_vllm = single["few_cached"]
    assert (before > 0, after, by_vllm) == (True, 0, 0)
    before, after, by_vllm = single["many_cached"]
    assert (before > 256, after, by_vllm) == (True, 0, 1)
    assert single["greedy_after_drops"] == single["greedy_before"][0]


def test_invalidation_drops_every_cached_block_before_the_push(single: dict[str, Any]) -> None:
    before, after, _ = single["invalidated"]
    assert (before > 0, after) == (True, 0)


def test_generate_rejects_weights_in_flux_or_dropped(single: dict[str, Any]) -> None:
    assert "being updated" in single["mid_update"]
    assert "sleeps" in single["asleep"]
    assert "no valid weights" in single["woken_without_weights"]


def test_generate_never_emits_vocabulary_padding(single: dict[str, Any]) -> None:
    assert single["hot_count"] >= 10_000
    assert single["hot_max"] < sessions.VOCAB


def test_generate_invariant_to_tp(single: dict[str, Any], pair: list[dict[str, Any]]) -> None:
    assert pair[0]["sampled"] == pair[1]["sampled"]
    assert _tokens(pair[0]["sampled"]) == _tokens(single["sampled"])
    for ours, theirs in zip(pair[0]["sampled"], single["sampled"], strict=True):
        for (_, logprobs, reason), (_, expected, expected_reason) in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(logprobs, expected, atol=1e-4)
            assert reason == expected_reason


def test_generate_rejects_different_prompts_on_the_ranks_of_one_engine(pair: list[dict[str, Any]]) -> None:
    assert pair[0]["split"] == pair[1]["split"]
    assert "rank 1 differs from rank 0 in prompts" in pair[0]["split"]
    assert pair[0]["after_split"] == pair[1]["after_split"]
    assert pair[0]["rng_unchanged"] and pair[1]["rng_unchanged"]


def test_generate_invariant_to_dp(tmp_path: Path) -> None:
    sessions.write_model_folder(tmp_path, tied=True)
    (one,) = run_distributed(1, sessions.global_rollouts, str(tmp_path))
    two = run_distributed(2, sessions.global_rollouts, str(tmp_path))
    for answer in two:
        assert answer["tokens"] == one["tokens"]
        assert answer["reasons"] == one["reasons"]
        np.testing.assert_allclose(answer["logprobs"], one["logprobs"], atol=1e-5)
    assert one["tied_is_one_tensor"]


def test_start_after_a_killed_run_and_holds_no_named_segments(pair: list[dict[str, Any]]) -> None:
    assert [answer["named_segments"] for answer in pair] == [[], []]
    assert [answer["sockets"] for answer in pair] == [[], []]
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("megatron_rl_")]


def test_probe_engine_finds_every_hook(single: dict[str, Any]) -> None:
    probe = single["probe"]
    assert "MISSING" not in probe.values()
    assert probe["vllm"] != "not installed"
