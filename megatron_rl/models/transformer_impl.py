"""Which implementation the layers have here: Transformer Engine, or Megatron-Core's linears with our own parts."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from functools import cache
from typing import Literal

import torch

from megatron_rl.config.model import ModelConfig
from megatron_rl.runtime.platform import Platform

LayerImplementation = Literal["transformer_engine", "local"]

TRANSFORMER_ENGINE_HIDDEN_SIZE = 1536
"""From this width on ``auto`` takes Transformer Engine. Its modules cost the host more; narrower layers keep the device waiting
for them (30 layers of hidden 576: 163 ms against 115 ms for the local spec, 16,384 tokens forward and backward)."""

_log = logging.getLogger(__name__)


@cache
def transformer_engine_fault() -> str | None:
    """Why Transformer Engine cannot be used by this process, None if it can. Imports it."""
    if importlib.util.find_spec("transformer_engine") is None:
        return "not installed"
    try:
        importlib.import_module("transformer_engine.pytorch")
    # A library built for another CUDA or torch fails in whatever way its loader does.
    except Exception as error:
        return f"installed, but its import fails: {type(error).__name__}: {error}"
    return None


def has_apex_accumulation() -> bool:
    """Whether NVIDIA Apex brings the products with which Megatron's own linears add to f32 gradient buffers."""
    return importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None


def choose_implementation(model: ModelConfig, platform: Platform, fault: str | None) -> LayerImplementation:
    """Resolve ``model.transformer_impl``.

    Args:
        model: holds the key; ``auto`` also looks at its width.
        platform: of the role.
        fault: why Transformer Engine cannot be used, None if it can.

    Raises ValueError where Transformer Engine is asked for and cannot run here.
    """
    on_cuda = platform.device.type == "cuda"
    if model.transformer_impl == "transformer_engine":
        reason = fault if on_cuda else "it computes on CUDA only, and this run on the CPU"
        if reason is not None:
            raise ValueError(
                f"model.transformer_impl=transformer_engine cannot be used here: {reason}. "
                "Use model.transformer_impl=auto or local, or install transformer-engine for this CUDA and torch"
            )
        return "transformer_engine"
    # Transformer Engine multiplies f32 matrices in TF32.
    suits = on_cuda and platform.dtype != torch.float32 and model.hidden_size >= TRANSFORMER_ENGINE_HIDDEN_SIZE
    return "transformer_engine" if model.transformer_impl == "auto" and suits and fault is None else "local"


def layer_implementation(model: ModelConfig, platform: Platform) -> LayerImplementation:
    """``choose_implementation`` for this process; says so where an installed Transformer Engine is passed over."""
    asked = model.transformer_impl != "local" and platform.device.type == "cuda"
    fault = transformer_engine_fault() if asked else None
    chosen = choose_implementation(model, platform, fault)
    if chosen == "local" and fault not in (None, "not installed"):
        _log.warning("Transformer Engine is passed over, layers are the local spec: %s", fault)
    return chosen
