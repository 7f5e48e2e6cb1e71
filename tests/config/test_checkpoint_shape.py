from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatron_rl.cli.compose import compose_run
from megatron_rl.config.errors import ConfigError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 251,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def test_shape_comes_from_the_checkpoint(checkpoint: Path) -> None:
    model = compose_run([f"model.path={checkpoint}"]).model
    assert (model.name, model.architecture, model.num_layers, model.vocab_size) == ("my-llama", "llama", 3, 251)
    assert (model.rope_theta, model.tie_word_embeddings, model.path) == (500000.0, True, str(checkpoint))


def test_explicit_key_that_leaves_the_weights_alone_wins(checkpoint: Path) -> None:
    model = compose_run([f"model.path={checkpoint}", "model.rope_theta=1e6", "model.name=mine"]).model
    assert (model.rope_theta, model.name) == (1e6, "mine")


@pytest.mark.parametrize(
    "override,said",
    [("model.num_layers=4", "model.num_layers=4"), ("model=qwen3_8b", "model=qwen3_8b (num_layers=36)")],
    ids=["key", "group"],
)
def test_explicit_shape_rejects_other_weights(checkpoint: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError, match="have num_layers=3") as caught:
        compose_run([f"model.path={checkpoint}", override])
    assert any(said in problem for problem in caught.value.problems)


def test_equal_explicit_shape_is_accepted(checkpoint: Path) -> None:
    assert compose_run([f"model.path={checkpoint}", "model.num_layers=3"]).model.num_layers == 3


def test_tokenizer_of_the_checkpoint_replaces_the_default_one(checkpoint: Path) -> None:
    assert compose_run([f"model.path={checkpoint}"]).model.tokenizer.endswith("spelling_tokenizer")
    (checkpoint / "tokenizer.json").write_text("{}")
    assert compose_run([f"model.path={checkpoint}"]).model.tokenizer == str(checkpoint)


def test_unreadable_checkpoint_is_rejected(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ConfigError, match=r"model\.path="):
        compose_run([f"model.path={checkpoint}"])
