"""Which implementation the layers have here: Transformer Engine, or Megatron-Core's linears with our own parts."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from functools import cache
from typing import Literal

import torch

from megatron_rl.config.model import TransformerImpl
from megatron_rl.runtime.platform import Platform

LayerImplementation = Literal["transformer_engine", "local"]

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


def choose_implementation(asked: TransformerImpl, device: torch.device, fault: str | None) -> LayerImplementation:
    """Resolve ``model.transformer_impl``.

    Args:
        asked: the key's value.
        device: of the role.
        fault: why Transformer Engine cannot be used, None if it can.

    Raises ValueError where Transformer Engine is asked for and cannot run here.
    """
    if asked == "transformer_engine":
        reason = "it computes on CUDA only, and this run on the CPU" if device.type != "cuda" else fault
        if reason is not None:
            raise ValueError(
                f"model.transformer_impl=transformer_engine cannot be used here: {reason}. "
                "Use model.transformer_impl=auto or local, or install transformer-engine for this CUDA and torch"
            )
        return "transformer_engine"
    if asked == "local" or device.type != "cuda" or fault is not None:
        return "local"
    return "transformer_engine"


def layer_implementation(asked: TransformerImpl, platform: Platform) -> LayerImplementation:
    """``choose_implementation`` for this process; says so where an installed Transformer Engine is passed over."""
    fault = transformer_engine_fault() if asked != "local" and platform.device.type == "cuda" else None
    chosen = choose_implementation(asked, platform.device, fault)
    if chosen == "local" and fault not in (None, "not installed"):
        _log.warning("Transformer Engine is passed over, layers are the local spec: %s", fault)
    return chosen
