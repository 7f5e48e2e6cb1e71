"""Checkpoint -> Megatron layout -> checkpoint: transformers loads the result and computes the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from megatron_rl.parallel.layout import ParallelLayout
from tests.resharding.export_job import load_and_export
from tests.support.distributed import run_distributed

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 251,
}
FAMILIES = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen2_tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=False),
}
LAYOUTS = {
    "tp2pp2": ParallelLayout(tensor=2, pipeline=2),
    "pp2dp2": ParallelLayout(pipeline=2, data=2),
    "tp4": ParallelLayout(tensor=4),
}


def _save_random_model(config, folder: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")


def _logits(folder: Path) -> torch.Tensor:
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        return model(torch.arange(40).view(2, 20)).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_export_hf_checkpoint_roundtrips(family: str, tmp_path: Path) -> None:
    _save_random_model(FAMILIES[family], tmp_path / "base")
    (tmp_path / "out").mkdir()
    load_and_export(ParallelLayout(), tmp_path / "base", tmp_path / "out")
    assert torch.equal(_logits(tmp_path / "out"), _logits(tmp_path / "base"))
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_export_hf_checkpoint_invariant_to_layout(layout: str, tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    _save_random_model(FAMILIES["qwen2_tied"], base)
    run_distributed(4, load_and_export, LAYOUTS[layout], base, out)
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    with safe_open(base / "model.safetensors", "pt") as before:
        assert set(index) == set(before.keys())
        for name, file in index.items():
            with safe_open(out / file, "pt") as after:
                assert torch.equal(after.get_tensor(name), before.get_tensor(name))


def test_export_hf_checkpoint_rejects_unwritable_folder(tmp_path: Path) -> None:
    _save_random_model(FAMILIES["llama"], tmp_path / "base")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"export to .* failed"):
        load_and_export(ParallelLayout(), tmp_path / "base", tmp_path / "file" / "out")
