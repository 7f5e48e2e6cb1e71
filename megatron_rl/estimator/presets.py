"""Model presets by name and by size."""

from __future__ import annotations

from functools import cache

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.spelling import nearest_choice

PRESET_OF_SIZE = {
    "135m": "smollm2_135m",
    "0.5b": "qwen2_5_0_5b",
    "1.5b": "qwen2_5_1_5b",
    "7b": "qwen2_7b",
    "8b": "qwen3_8b",
    "30b-a3b": "qwen3_30b_a3b",
    "70b": "llama3_70b",
    "671b": "deepseek_v3",
}
"""What a bare size means."""


@cache
def preset_model(name: str) -> ModelConfig:
    """Shape of a preset. Raises ConfigError naming the nearest one."""
    return compose([f"model={name}"]).model


def preset_of_size(size: str) -> str:
    """Preset of a size such as ``7B``, or of its own name. Raises ConfigError naming the nearest ones."""
    known = PRESET_OF_SIZE.get(size.lower())
    if known is not None or size in PRESET_OF_SIZE.values():
        return known or size
    close = nearest_choice(size.lower(), PRESET_OF_SIZE)
    advice = f" (did you mean {close.upper()}?)" if close else ""
    sizes = ", ".join(f"{key.upper()} ({preset})" for key, preset in PRESET_OF_SIZE.items())
    raise ConfigError([f"model_size={size}: no such size{advice}; known: {sizes}; any other shape: model= and model.* keys"])
