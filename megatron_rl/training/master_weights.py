"""F32 master weights of Transformer Engine's Adam, which keeps what a bf16 weight lacks of them: 16 bits a parameter.

A checkpoint holds whole f32 master weights, so it loads whichever way the optimizer keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from torch import Tensor

from megatron_rl.training.optimizer_leaves import leaf_optimizers


def join_master(weights: Tensor, remainders: Tensor) -> Tensor:
    """F32 master weights of bf16 weights and the i16 remainders Transformer Engine keeps for them.

    The master's upper half is the weight; a negative remainder says that the weight was rounded up.
    """
    upper = weights.view(torch.int16).to(torch.int32) - (remainders < 0).to(torch.int32)
    lower = remainders.to(torch.int32) & 0xFFFF
    return ((upper << 16) | lower).view(torch.float32)


def split_master(masters: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse of :func:`join_master`: bf16 weights, rounded to nearest with ties away from zero, and i16 remainders."""
    bits = masters.view(torch.int32)
    remainders = (bits & 0xFFFF).to(torch.int16)
    upper = (bits >> 16) + (remainders < 0).to(torch.int32)
    return upper.to(torch.int16).view(torch.bfloat16), remainders


def forget_remainders(optimizer: MegatronOptimizer) -> None:
    """Make master weights equal to the weights, where they are kept as remainders."""
    for leaf in _with_remainders(optimizer):
        for state in leaf.optimizer.state.values():
            if "master_param" in state:
                state["master_param"].zero_()


@contextmanager
def whole_master_weights(optimizer: MegatronOptimizer) -> Iterator[None]:
    """While this is open, Megatron reads and writes optimizer states with f32 master weights."""
    methods = ("_get_main_param_and_optimizer_states", _joining), ("_set_main_param_and_optimizer_states", _splitting)
    patched = [(leaf, name, getattr(leaf, name), wrap) for leaf in _with_remainders(optimizer) for name, wrap in methods]
    for leaf, name, method, wrap in patched:
        setattr(leaf, name, wrap(leaf, method))
    try:
        yield
    finally:
        for leaf, name, method, _ in patched:
            setattr(leaf, name, method)


def prime_fused_adam(optimizer: MegatronOptimizer) -> None:
    """Give Transformer Engine's Adam its state before the first step, as a checkpoint of an untrained role needs it."""
    for leaf in leaf_optimizers(optimizer):
        adam = leaf.optimizer
        if hasattr(adam, "initialize_state"):
            for group in adam.param_groups:
                for parameter in group["params"]:
                    if not adam.state[parameter]:
                        adam.initialize_state(parameter, adam.store_param_remainders and parameter.dtype == torch.bfloat16)


def _with_remainders(optimizer: MegatronOptimizer) -> Iterator[DistributedOptimizer]:
    return (leaf for leaf in leaf_optimizers(optimizer) if leaf.config.use_precision_aware_optimizer)


def _shard(leaf: DistributedOptimizer, model_param: torch.nn.Parameter) -> Tensor:
    group, order = leaf.model_param_group_index_map[model_param]
    shard: Tensor = leaf.optimizer.param_groups[group]["params"][order]
    return shard


def _joining(leaf: DistributedOptimizer, getter: Any) -> Any:
    def states(model_param: torch.nn.Parameter) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = getter(model_param)
        return {**tensors, "param": join_master(_shard(leaf, model_param).detach(), tensors["param"])}

    return states


def _splitting(leaf: DistributedOptimizer, setter: Any) -> Any:
    def set_states(model_param: torch.nn.Parameter, tensors: dict[str, Tensor]) -> None:
        shard = _shard(leaf, model_param)
        weights, remainders = split_master(tensors["param"].to(shard.device, torch.float32).contiguous())
        shard.data.copy_(weights)
        others = {name: x.float() for name, x in tensors.items() if isinstance(x, Tensor) and name != "param"}
        setter(model_param, {**others, "param": remainders})

    return set_states
