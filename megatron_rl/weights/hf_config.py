"""A Hugging Face ``config.json`` as a model shape and back; torch-free, without transformers.

Reads both spellings of the rotary base: ``rope_theta`` with ``rope_scaling`` (transformers 4) and ``rope_parameters``
(transformers 5). Writes both, so that either version reads what was exported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_rl.config.model import ModelConfig, RopeScalingConfig

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_ROPE_SCALING_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_KEPT_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "attention_dropout")
"""What an export takes over from the config.json the model came from; all else follows from the shape."""
_PLAIN_KEYS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
}
"""Schema key -> required key of config.json."""


def model_config_from_hf(folder: Path) -> ModelConfig:
    """Read the shape of the checkpoint in ``folder``; ``path`` is the folder, ``name`` its last component.

    Raises ValueError naming the key of config.json that is absent or that this project does not train.
    """
    file = folder / "config.json"
    try:
        raw: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        raise ValueError(f"model.path={folder} has no config.json; give a Hugging Face checkpoint folder") from None
    except json.JSONDecodeError as failure:
        raise ValueError(f"{file} is not JSON: {failure}") from None
    family = raw.get("model_type")
    if family not in _CLASSES:
        raise ValueError(f"{file}: model_type={family!r} is not one of {sorted(_CLASSES)}")
    _refuse_untrained(raw, family, file)
    absent = [key for key in _PLAIN_KEYS.values() if key not in raw]
    if absent:
        raise ValueError(f"{file} lacks {', '.join(absent)}")
    theta, scaling = _read_rope(raw, file)
    return ModelConfig(
        name=folder.resolve().name,
        architecture=family,
        path=str(folder),
        num_key_value_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or (128 if family == "qwen3" else None),
        max_position_embeddings=raw.get("max_position_embeddings", 4096),
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        **{ours: raw[theirs] for ours, theirs in _PLAIN_KEYS.items()},
    )


def hf_config(model: ModelConfig, *, dtype: str, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The content of ``config.json`` for this shape.

    ``dtype``: of the stored weights, for example ``"bfloat16"``. ``base``: config.json of the checkpoint the model came
    from, whose special token ids are kept; without one they are null, since families have defaults of their own.
    Raises ValueError where the family cannot express the shape.
    """
    _refuse_inexpressible(model)
    config: dict[str, Any] = {
        **{key: None for key in _KEPT_KEYS if key.endswith("token_id")},
        **{key: base[key] for key in _KEPT_KEYS if base is not None and key in base},
        "architectures": [_CLASSES[model.architecture]],
        "model_type": model.architecture,
        **{theirs: getattr(model, ours) for ours, theirs in _PLAIN_KEYS.items()},
        "num_key_value_heads": model.num_key_value_heads,
        "head_dim": model.kv_channels,
        "hidden_act": "silu",
        "max_position_embeddings": model.max_position_embeddings,
        "tie_word_embeddings": model.tie_word_embeddings,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_theta": model.rope_theta, **_rope_scaling(model, default="default")},
        "dtype": dtype,
    }
    if model.rope_scaling is not None:
        config["rope_scaling"] = _rope_scaling(model)
    if model.architecture != "qwen2":
        config["attention_bias"] = False
    if model.architecture == "llama":
        config["mlp_bias"] = False
    return config


def _rope_scaling(model: ModelConfig, default: str = "") -> dict[str, Any]:
    scaling = model.rope_scaling
    return {"rope_type": default} if scaling is None else scaling.model_dump()


def _read_rope(raw: Mapping[str, Any], file: Path) -> tuple[float, RopeScalingConfig | None]:
    rope = raw.get("rope_parameters") or {}
    scaling = rope or raw.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    if rope_type == "default":
        return theta, None
    if rope_type != "llama3":
        raise ValueError(f"{file}: rope_type={rope_type!r} is not supported; only the default and llama3 are")
    values = {key: scaling[key] for key in _ROPE_SCALING_KEYS}
    return theta, RopeScalingConfig(rope_type="llama3", **values)


def _refuse_untrained(raw: Mapping[str, Any], family: str, file: Path) -> None:
    wanted = {"hidden_act": "silu", "mlp_bias": False, "attention_bias": False, "use_sliding_window": False}
    if family == "qwen2":
        del wanted["attention_bias"]
    for key, value in wanted.items():
        if raw.get(key, value) != value:
            raise ValueError(f"{file}: {key}={raw[key]!r} is not supported for {family}, only {value!r}")
    if "quantization_config" in raw:
        raise ValueError(f"{file}: quantised weights cannot be trained; give the unquantised checkpoint")


def _refuse_inexpressible(model: ModelConfig) -> None:
    family = model.architecture
    if family not in _CLASSES:
        raise ValueError(f"model.architecture={family} has no Hugging Face export; choose from {sorted(_CLASSES)}")
    for key, needed in (("qkv_bias", family == "qwen2"), ("qk_norm", family == "qwen3")):
        if getattr(model, key) != needed:
            raise ValueError(f"model.{key}={getattr(model, key)}: a {family} checkpoint has {key}={needed}")
