"""GGUF to a Hugging Face folder, against weights that were written in llama.cpp's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from megatron_rl.data.tokenizer import load_tokenizer
from megatron_rl.weights import gguf
from megatron_rl.weights.gguf import gguf_problem, gguf_to_hf
from megatron_rl.weights.hf_config import model_config_from_hf
from tests.weights.gguf_files import CHAT_TEMPLATE, MODEL, hf_weights, write_tiny_gguf


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    gguf_to_hf(write_tiny_gguf(folder / "tiny.gguf", hf_weights()), folder / "hf")
    return folder / "hf"


def test_gguf_weights_roundtrips(converted: Path) -> None:
    found, expected = load_file(converted / "model.safetensors"), hf_weights()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_array_equal(found[name], weight, err_msg=name)


def test_gguf_shape_roundtrips(converted: Path) -> None:
    kept = {"name": MODEL.name, "path": None, "head_dim": None}
    shape = model_config_from_hf(converted)
    assert shape.head_dim == MODEL.kv_channels
    assert shape.rms_norm_eps == pytest.approx(MODEL.rms_norm_eps, rel=1e-6)
    assert shape.model_copy(update={**kept, "rms_norm_eps": MODEL.rms_norm_eps}) == MODEL


def test_gguf_tokenizer_and_chat_template_come_along(converted: Path) -> None:
    tokenizer = load_tokenizer(str(converted))
    assert tokenizer.decode(tokenizer.encode("12 + 7\n")) == "12 + 7\n"
    assert tokenizer.eos_token_ids[0] == 2
    assert (converted / "chat_template.jinja").read_text() == CHAT_TEMPLATE


def test_gguf_leaves_no_partial_folder(converted: Path, tmp_path: Path) -> None:
    assert [path.name for path in converted.parent.iterdir() if "partial" in path.name] == []
    file = write_tiny_gguf(tmp_path / "stranger.gguf", hf_weights(), architecture="rwkv7")
    with pytest.raises(ValueError, match=r"convert\.source=.*stranger\.gguf: transformers cannot read it"):
        gguf_to_hf(file, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["stranger.gguf"]


def test_gguf_problem_rejects_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert gguf_problem(file) is None
    monkeypatch.setattr(gguf, "find_spec", lambda package: None if package == "accelerate" else object())
    assert "reading GGUF needs accelerate: pip install 'megatron-rl[gguf]'" in str(gguf_problem(file))


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "no such file"), (b"PK\x03\x04", "does not begin with the letters GGUF")],
    ids=["absent", "zip"],
)
def test_gguf_problem_rejects_what_is_no_gguf_file(content: bytes | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    if content is not None:
        file.write_bytes(content)
    assert says in str(gguf_problem(file))
