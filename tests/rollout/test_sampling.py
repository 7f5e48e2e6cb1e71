"""Sampling settings, seeds and stop ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_rl.config.rollout import MAX_SAMPLES_PER_PROMPT, RolloutConfig, ValidationSamplingConfig
from megatron_rl.rollout.sampling import (
    SamplingSettings,
    generation_config_differences,
    request_seed,
    require_same_eos,
)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        pytest.param({"temperature": 0.005}, "rollout.temperature=0.005", id="temperature_the_engine_would_raise"),
        pytest.param({"temperature": 1e-6}, "rollout.temperature=1e-06", id="temperature_the_engine_takes_for_greedy"),
        pytest.param({"temperature": -1.0}, "rollout.temperature=-1.0", id="negative_temperature"),
        pytest.param({"temperature": float("nan")}, "rollout.temperature=nan", id="nan_temperature"),
        pytest.param({"temperature": 0.0, "n": 2}, "rollout.n=2", id="several_greedy_samples"),
        pytest.param({"n": 0}, "rollout.n=0", id="no_samples"),
        pytest.param({"n": MAX_SAMPLES_PER_PROMPT + 1}, "rollout.n=65537", id="samples_beyond_the_seed_spacing"),
        pytest.param({"top_p": 0.0}, "rollout.top_p=0.0", id="empty_nucleus"),
        pytest.param({"top_p": 1.1}, "rollout.top_p=1.1", id="nucleus_above_one"),
        pytest.param({"top_k": 0}, "rollout.top_k=0", id="zero_top_k"),
        pytest.param({"max_new_tokens": 0}, "data.max_response_length=0", id="no_budget"),
    ],
)
def test_sampling_settings_rejects_values_the_engine_would_alter(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        SamplingSettings(**{"max_new_tokens": 4, **values})


def test_for_training_takes_every_value_from_our_config() -> None:
    config = RolloutConfig(n=8, temperature=0.7, top_p=0.9, top_k=40)
    settings = SamplingSettings.for_training(config, 16, [9, 2, 9])
    assert settings == SamplingSettings(
        n=8, temperature=0.7, top_p=0.9, top_k=40, max_new_tokens=16, stop_token_ids=(2, 9), ignore_eos=False
    )


def test_for_validation_takes_its_own_section() -> None:
    settings = SamplingSettings.for_validation(ValidationSamplingConfig(n=1, temperature=0.0), 16, [2])
    assert (settings.n, settings.temperature, settings.stop_token_ids) == (1, 0.0, (2,))


def test_request_seed_never_overlaps_between_prompts_and_steps() -> None:
    seeds = [request_seed(run, step, prompt) for run in range(3) for step in range(20) for prompt in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(seed % MAX_SAMPLES_PER_PROMPT == 0 and 0 <= seed < 2**62 for seed in seeds)


def test_request_seed_matches_golden() -> None:
    # Frozen: a resumed or repeated run must draw the same samples with a later release.
    assert [request_seed(0, 1, 0), request_seed(7, 3, 2)] == [1497150392024301568, 1609270724974149632]


def _write(folder: Path, name: str, **values: object) -> None:
    (folder / name).write_text(json.dumps(values))


def test_require_same_eos_rejects_ids_only_the_engine_knows(tmp_path: Path) -> None:
    _write(tmp_path, "generation_config.json", eos_token_id=[7, 9])
    require_same_eos(SamplingSettings(max_new_tokens=4, stop_token_ids=(2, 7, 9)), tmp_path)
    require_same_eos(SamplingSettings(max_new_tokens=4, ignore_eos=True), tmp_path)
    with pytest.raises(ValueError, match=r"ids \[9\].*EOS ids are \[7\]"):
        require_same_eos(SamplingSettings(max_new_tokens=4, stop_token_ids=(7,)), tmp_path)


def test_generation_config_differences_matches_hand_computed(tmp_path: Path) -> None:
    _write(tmp_path, "generation_config.json", temperature=0.3, top_p=0.8, top_k=20, repetition_penalty=1.2, eos_token_id=1)
    found = generation_config_differences(tmp_path, SamplingSettings(max_new_tokens=4, top_p=0.8))
    assert found == {"temperature": (0.3, 1.0), "top_k": (20, -1), "repetition_penalty": (1.2, 1.0)}


def test_generation_config_differences_is_empty_without_the_file(tmp_path: Path) -> None:
    assert generation_config_differences(tmp_path, SamplingSettings(max_new_tokens=4)) == {}
