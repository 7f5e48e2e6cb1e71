"""config.json to model shape and back, against transformers' own classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, LlamaConfig, Qwen2Config, Qwen3Config

from megatron_rl.config.model import RopeScalingConfig
from megatron_rl.weights.hf_config import hf_config, model_config_from_hf
from tests.resharding.shapes import tiny_model

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 251,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": LlamaConfig(**SIZES, rms_norm_eps=1e-5),
    "llama3_scaling": LlamaConfig(**SIZES, max_position_embeddings=512, rope_parameters={**LLAMA3, "rope_theta": 5e5}),
    "qwen2_tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3_head_dim": Qwen3Config(**SIZES, head_dim=8, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}),
}
COMPARED = ("num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "max_position_embeddings")


@pytest.mark.parametrize("case", CASES)
def test_model_config_from_hf_roundtrips(case: str, tmp_path: Path) -> None:
    theirs = CASES[case]
    theirs.save_pretrained(tmp_path)
    model = model_config_from_hf(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(model, dtype="float32")))
    back = AutoConfig.from_pretrained(tmp_path)
    assert type(back) is type(theirs)
    for key in (*SIZES, *COMPARED):
        assert getattr(back, key, None) == getattr(theirs, key, None) or key == "head_dim"
    assert back.rope_parameters == theirs.rope_parameters
    assert model_config_from_hf(tmp_path).model_copy(update={"head_dim": model.head_dim}) == model


def test_model_config_from_hf_reads_older_spelling(tmp_path: Path) -> None:
    older = {**SIZES, "model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(older))
    model = model_config_from_hf(tmp_path)
    assert model.rope_theta == 5e5
    assert model.rope_scaling == RopeScalingConfig(original_max_position_embeddings=64)


def test_hf_config_keeps_special_tokens() -> None:
    config = hf_config(tiny_model("llama"), dtype="bfloat16", base={"eos_token_id": [2, 5], "layer_types": []})
    assert config["eos_token_id"] == [2, 5]
    assert config["dtype"] == "bfloat16"
    assert config["bos_token_id"] is None
    assert "layer_types" not in config


REJECTED = {
    "family": ({"model_type": "gpt2"}, "model_type='gpt2'"),
    "bias": ({"model_type": "llama", "attention_bias": True}, "attention_bias=True"),
    "activation": ({"model_type": "qwen2", "hidden_act": "gelu"}, "hidden_act='gelu'"),
    "quantised": ({"model_type": "llama", "quantization_config": {}}, "quantised"),
    "yarn": ({"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}, **SIZES}, "rope_type='yarn'"),
    "incomplete": ({"model_type": "llama", "hidden_size": 4}, "lacks num_hidden_layers"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_model_config_from_hf_rejects(case: str, tmp_path: Path) -> None:
    raw, message = REJECTED[case]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=message):
        model_config_from_hf(tmp_path)


def test_hf_config_rejects_foreign_bias() -> None:
    with pytest.raises(ValueError, match="qkv_bias"):
        hf_config(tiny_model("llama").model_copy(update={"qkv_bias": True}), dtype="float32")
