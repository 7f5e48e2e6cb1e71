"""A checkpoint folder decides the model's shape: what its config.json says replaces the composed model's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.model import ModelConfig

OWN_KEYS = ("path", "tokenizer_path", "chat_template", "name", "transformer_impl")
"""Keys of the model section that neither a config.json nor the shape in a checkpoint decides."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")
"""Either of these in a checkpoint folder makes it its own tokenizer."""
WEIGHT_SHAPE_KEYS = (
    "architecture",
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "qkv_bias",
    "qk_norm",
    "moe",
    "mla",
)
"""Keys that the stored weights cannot disagree with; the others (RoPE, epsilon, length) may be overridden."""


def apply_checkpoint_shape(
    container: dict[str, Any], explicit: Mapping[str, Any], read_shape: Callable[[Path], ModelConfig]
) -> None:
    """Fill ``container["model"]`` from the checkpoint at ``model.path``; leave it alone where that is no such folder.

    Args:
        container: composed configuration, changed in place.
        explicit: what the user typed, dotted key or group -> value.
        read_shape: reads config.json.

    Raises:
        ConfigError: an explicit key, or an explicitly chosen ``model=`` group, has another shape than the weights.
    """
    model = container["model"]
    path = model.get("path")
    if not isinstance(path, str) or not (Path(path) / "config.json").is_file():
        return
    try:
        stored = read_shape(Path(path)).model_dump(mode="python")
    except ValueError as failure:
        raise ConfigError([f"model.path={path}: {failure}"]) from None
    _reject_conflicts(model, stored, explicit, path)
    for key, value in stored.items():
        if key not in OWN_KEYS and f"model.{key}" not in explicit:
            model[key] = value
    holds_tokenizer = any((Path(path) / name).exists() for name in TOKENIZER_FILES)
    if holds_tokenizer and "model" not in explicit and "model.tokenizer_path" not in explicit:
        model["tokenizer_path"] = None
    if "model" not in explicit and "model.name" not in explicit:
        model["name"] = Path(path).resolve().name


def _reject_conflicts(model: dict[str, Any], stored: dict[str, Any], explicit: Mapping[str, Any], path: str) -> None:
    problems = []
    for key in WEIGHT_SHAPE_KEYS:
        typed = any(name == f"model.{key}" or name.startswith(f"model.{key}.") for name in explicit)
        if (typed or "model" in explicit) and not _same(key, model, stored):
            source = f"model.{key}={model.get(key)}" if typed else f"model={explicit['model']} ({key}={model.get(key)})"
            problems.append(
                f"{source}: the weights in model.path={path} have {key}={stored[key]}; "
                f"leave {'it' if typed else 'model='} out, or give another path"
            )
    if problems:
        raise ConfigError(problems)


def _same(key: str, model: dict[str, Any], stored: dict[str, Any]) -> bool:
    if key != "head_dim":
        return bool(model.get(key) == stored[key])

    def width(shape: dict[str, Any]) -> float:
        return float(shape.get("head_dim") or shape["hidden_size"] / shape["num_attention_heads"])

    return width(model) == width(stored)
