"""Model presets by name and by size."""

from __future__ import annotations

import re
from functools import cache
from math import log

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose, group_choices
from megatron_rl.config.model import ModelConfig

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
    """Preset of a size such as ``7B``, or of a model's name such as ``qwen2_7b`` or ``Qwen/Qwen2-7B``.

    Raises ConfigError with the nearest size and all of them.
    """
    text = str(size).replace(" ", "").rpartition("/")[2].lower()
    preset = PRESET_OF_SIZE.get(text, re.sub(r"[-.]", "_", text))
    if preset in group_choices()["model"]:
        return preset
    close = _nearest_size(text)
    advice = f" (did you mean {close.upper()}?)" if close else ""
    sizes = ", ".join(f"{key.upper()} ({preset})" for key, preset in PRESET_OF_SIZE.items())
    raise ConfigError([f"model_size={size}: no such size{advice}; known: {sizes}; any other shape: model= and model.* keys"])


def _nearest_size(text: str) -> str | None:
    """The known size closest in ratio to the one that ``text`` begins with; None where it begins with none."""
    wanted = _billions(text)
    if not wanted:
        return None
    return min(PRESET_OF_SIZE, key=lambda size: abs(log((_billions(size) or 1.0) / wanted)))


def _billions(text: str) -> float | None:
    number = re.match(r"(\d+(?:\.\d+)?)(m?)", text)
    return None if number is None else float(number[1]) / (1000 if number[2] else 1)
