"""A vLLM loader that puts parameters onto storage of the trainer, so that there is one copy of them.

Megatron's optimizer then writes what the engine reads. Parameters are bound before vLLM's post-processing, compilation
and CUDA-graph capture, all of which see the trainer's addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig


def register_sharing_loader(name: str, shared: Mapping[str, Tensor]) -> None:
    """Make ``load_format=name`` bind ``shared`` and fill every other parameter with zeros.

    Args:
        name: of the format, lower case, one for each engine.
        shared: parameter by the engine's name -> flat run that starts at its first element and is at least as long.

    While the model is built, its parameters own no memory: what will be bound is never allocated twice.
    """
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(name)
    class SharingLoader(BaseModelLoader):
        def download_model(self, model_config: ModelConfig) -> None:
            del model_config

        def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = "") -> torch.nn.Module:
            self._hook = torch.nn.modules.module.register_module_parameter_registration_hook(_give_up_memory)
            try:
                model: torch.nn.Module = super().load_model(vllm_config, model_config, prefix)
                return model
            finally:
                self._hook.remove()

        def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
            del model_config
            self._hook.remove()
            quantise_zeros(model)
            bind(model, shared)


@torch.no_grad()
def quantise_zeros(model: torch.nn.Module) -> None:
    """Give layers that vLLM quantises while it loads their final parameters, of weights that are zero."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    device = next(parameter.device for parameter in model.parameters() if not parameter.is_meta)
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if method is None or not getattr(method, "uses_meta_device", False):
            continue
        weight = layer.get_parameter("weight")
        layer.register_parameter("weight", torch.nn.Parameter(torch.zeros_like(weight, device=device), False))
        method.process_weights_after_loading(layer)
        get_layerwise_info(layer).reset()  # type: ignore[no-untyped-call]


@torch.no_grad()
def bind(model: torch.nn.Module, shared: Mapping[str, Tensor]) -> None:
    """Give every parameter its memory: the shared run, or new zeros. Tied names may name either.

    Raises ValueError naming the parameter where a run does not fit it.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    unknown = sorted(shared.keys() - parameters.keys())
    if unknown:
        raise ValueError(f"the engine has no parameter {unknown[0]!r} to share")
    bound = set()
    for name, run in shared.items():
        parameter = parameters[name]
        _require_fitting(name, parameter, run)
        parameter.data = run[: parameter.numel()].view(parameter.shape)
        bound.add(id(parameter))
    for parameter in parameters.values():
        if id(parameter) not in bound:
            parameter.data = torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            bound.add(id(parameter))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the engine keeps a shared parameter, and the address it must have."""

    name: str
    module: torch.nn.Module
    attribute: str
    address: int


class SharedPlaces:
    """Checks that an engine still reads the trainer's storage."""

    def __init__(self, model: torch.nn.Module, shared: Mapping[str, Tensor]) -> None:
        """Look the shared parameters up in a built model. Raises RuntimeError naming one that was replaced meanwhile."""
        self._places = []
        for name, run in shared.items():
            path, _, attribute = name.rpartition(".")
            self._places.append(_Place(name, model.get_submodule(path), attribute, run.data_ptr()))
        self.shares_all = {id(p) for p in model.parameters()} <= {id(p.module.get_parameter(p.attribute)) for p in self._places}
        self.require_unmoved()

    def require_unmoved(self) -> None:
        """Raise RuntimeError naming a parameter that the engine has put elsewhere."""
        for place in self._places:
            parameter = place.module._parameters[place.attribute]
            if parameter is None or parameter.data_ptr() != place.address:
                raise RuntimeError(
                    f"the engine has moved {place.name!r} off the trainer's storage (it repacks this layer's weights?); "
                    "set weight_sync.alias=false"
                )


def _give_up_memory(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
    """Keep shape, dtype and device of a new parameter, on the memory of one element."""
    del module, name
    if parameter is not None and parameter.numel() > 1 and not parameter.is_meta:
        parameter.data = parameter.data.new_empty((1,) * parameter.dim()).expand(parameter.shape)


def _require_fitting(name: str, parameter: Tensor, run: Tensor) -> None:
    same = run.dtype == parameter.dtype and run.device == parameter.device and run.is_contiguous()
    if not same or run.dim() != 1 or run.numel() < parameter.numel():
        raise ValueError(
            f"{name!r} {tuple(parameter.shape)} {parameter.dtype} on {parameter.device} cannot share {tuple(run.shape)} "
            f"{run.dtype} on {run.device}; set weight_sync.alias=false"
        )
