"""``megatron-rl convert`` up to the ranks: what it reads, and what it refuses before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.cli import convert
from megatron_rl.cli.main import main
from megatron_rl.config.run import RunConfig
from tests.weights.gguf_files import MODEL, hf_weights, write_tiny_gguf


@pytest.mark.parametrize("spelling", [("--gguf", "{file}"), ("convert.source={file}", "convert.to=huggingface")])
def test_convert_gguf_to_hugging_face(spelling: tuple[str, ...], tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", hf_weights())
    arguments = [word.format(file=file) for word in spelling]
    assert main(["convert", *arguments, f"convert.target={tmp_path / 'hf'}"]) == 0
    assert {path.name for path in (tmp_path / "hf").iterdir()} >= {"model.safetensors", "config.json", "tokenizer.json"}


def test_convert_gguf_to_megatron_hands_the_folder_to_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", hf_weights())
    launched: list[RunConfig] = []
    monkeypatch.setattr(convert, "launch_task", lambda task, config: launched.append(config) or 0)
    assert main(["convert", "--gguf", str(file), f"target={tmp_path / 'megatron'}", "to=megatron"]) == 0
    (config,) = launched
    assert config.convert.source == config.model.path == str(tmp_path / "megatron" / "huggingface")
    assert config.model.num_layers == MODEL.num_layers


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gguf",), "--gguf: name the file"),
        (("--gguf", "FILES/absent.gguf", "target=FILES/hf"), "absent.gguf: no such file"),
        (("--gguf", "FILES/prompts.gguf", "target=FILES/hf"), "it is no GGUF file"),
        (("--gguf", "FILES/prompts.gguf"), "convert.target is null: name a folder"),
        (("convert.source=FILES", "convert.target=FILES/hf"), "has no config.json"),
        (("convert.source=FILES", "convert.target=FILES"), "exists; name a folder that does not"),
    ],
    ids=["no_name", "absent", "no_gguf", "no_target", "no_hf_folder", "target_exists"],
)
def test_convert_rejects(arguments: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.gguf").write_text("no weights here")
    assert main(["convert", *(word.replace("FILES", str(tmp_path)) for word in arguments)]) == 2
    assert says in capsys.readouterr().err
