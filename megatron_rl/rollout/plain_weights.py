"""Engine weights kept as loaded, so that they can be written in place or shared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_cpu_weights(device: torch.device) -> Iterator[None]:
    """On CPU, keep linear weights as loaded while an engine is built.

    vLLM would repack them for its own matrix products and leave empty parameters behind; then nothing could be written
    in place.
    """
    if device.type != "cpu":
        yield
        return
    from vllm.model_executor.layers import utils as layer_functions

    def keep(layer: torch.nn.Module, remove_weight: bool) -> None:
        del remove_weight
        vars(layer)["cpu_linear"] = torch.nn.functional.linear

    original = layer_functions.dispatch_cpu_unquantized_gemm
    layer_functions.dispatch_cpu_unquantized_gemm = keep
    try:
        yield
    finally:
        layer_functions.dispatch_cpu_unquantized_gemm = original


def require_plain_parameters(model: torch.nn.Module) -> None:
    """Every parameter is what the forward reads: none emptied, no linear layer with a packed copy."""
    emptied = [name for name, p in model.named_parameters() if p.numel() == 0]
    linear = torch.nn.functional.linear
    packed = [name for name, module in model.named_modules() if vars(module).get("cpu_linear", linear) is not linear]
    assert not emptied and not packed, f"weights cannot be written in place: emptied {emptied}, packed {packed}"
