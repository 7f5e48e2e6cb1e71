"""A process on a GPU host that computes as a host without one would. Imports nothing that would load Megatron-Core."""

from __future__ import annotations

import sys
from typing import Any

from megatron_rl.config.model import ModelConfig


def on_plain_cpu(model: ModelConfig, weights: dict[str, Any]) -> Any:
    """``layer_parity.answer`` of the local layers in f32; for a fresh rank that was started without GPUs.

    Transformer Engine is made unimportable: Megatron-Core would take its Adam, which needs CUDA.
    """
    sys.modules["transformer_engine"] = None  # type: ignore[assignment]
    from tests.models.layer_parity import Variant, answer

    return answer(model, Variant("local", "float32"), weights)
