"""Settings beside the weights of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_rl.weights.hf_folder import model_eos_token_ids, read_settings


def _write(folder: Path, name: str, **values: object) -> None:
    (folder / name).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        pytest.param({"eos_token_id": [7, 9]}, {"eos_token_id": 9}, (7, 9), id="list_and_int"),
        pytest.param({}, {"eos_token_id": 3}, (3,), id="config_only"),
        pytest.param(None, {"eos_token_id": None}, (), id="none_anywhere"),
    ],
)
def test_model_eos_token_ids_matches_hand_computed(
    tmp_path: Path, generation: dict[str, Any] | None, config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    _write(tmp_path, "config.json", **config)
    if generation is not None:
        _write(tmp_path, "generation_config.json", **generation)
    assert model_eos_token_ids(tmp_path) == expected


@pytest.mark.parametrize(("text", "problem"), [("{", "not valid JSON"), ("[1]", "expected a JSON object, got list")])
def test_read_settings_rejects_what_is_no_object(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=f"config.json: {problem}"):
        read_settings(tmp_path / "config.json")
