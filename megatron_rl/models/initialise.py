"""Random weights that do not depend on the layout: each tensor is drawn whole from its own name, then cut."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from megatron_rl.config.model import ModelConfig
from megatron_rl.models.tensor_cut import cut_dim, num_stacked
from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.weights.names import MEGATRON_EMBEDDING, MEGATRON_VOCABULARY

_STD = 0.02
_SCALED = ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")
"""Outputs into the residual stream, divided by sqrt(2 * layers) (Radford et al. 2019, section 2.3)."""


def _std(name: str, model: ModelConfig) -> float:
    if name.startswith("value_head."):
        return 0.0  # The first advantages are then plain returns, not noise of a random head.
    return _STD / math.sqrt(2 * model.num_layers) if name.endswith(_SCALED) else _STD


def _whole_shape(parameter: Tensor, rows: int | None, tensor: int) -> tuple[int, ...]:
    """Shape over all tensor-parallel ranks; ``rows`` replaces the first extent (vocabulary without padding)."""
    shape = list(parameter.shape)
    dim = cut_dim(parameter)
    if dim is not None:
        shape[dim] *= tensor
    if rows is not None:
        shape[0] = rows
    return tuple(shape)


def _sections(name: str, parameter: Tensor, model: ModelConfig, extent: int) -> list[int]:
    """Extents along the cut dim of the tensors stacked in a parameter, each of which is cut on its own."""
    if name.endswith("linear_qkv.weight"):
        key = model.num_key_value_heads * model.kv_channels
        return [extent - 2 * key, key, key]
    return [extent // num_stacked(parameter)] * num_stacked(parameter)


def _shard(name: str, whole: Tensor, parameter: Tensor, model: ModelConfig, rank: int, tensor: int) -> Tensor:
    """This rank's part."""
    dim = cut_dim(parameter)
    if dim is None:
        return whole
    sections = torch.split(whole, _sections(name, parameter, model, whole.shape[dim]), dim=dim)
    return torch.cat([section.chunk(tensor, dim=dim)[rank] for section in sections], dim=dim)


def initialise(parameters: Mapping[str, torch.nn.Parameter], model: ModelConfig, groups: RoleGroups, seed: int) -> None:
    """Fill this rank's parameters: matrices normal, norms one, biases zero, padded vocabulary rows zero.

    The same seed gives the same model on every layout. Tied copies draw the same numbers, being one tensor.

    Args:
        parameters: by global name, see ``named_local_parameters``.
        model: shape of the whole model.
        groups: of the role.
        seed: of the draw.
    """
    assert groups.coordinates is not None
    rank, tensor = groups.coordinates.tensor, groups.layout.tensor
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                parameter.copy_(_draw(name, parameter, model, seed, rank, tensor))


def _draw(name: str, parameter: Tensor, model: ModelConfig, seed: int, rank: int, tensor: int) -> Tensor:
    is_vocab = name in MEGATRON_VOCABULARY
    source = MEGATRON_EMBEDDING.local if is_vocab and model.tie_word_embeddings else name
    digest = hashlib.sha256(f"{seed}:{source}".encode()).digest()
    generator = torch.Generator(device=parameter.device).manual_seed(int.from_bytes(digest[:7], "big"))
    shape = _whole_shape(parameter, model.vocab_size if is_vocab else None, tensor)
    whole = torch.empty(shape, device=parameter.device).normal_(0.0, _std(source, model), generator=generator)
    if is_vocab:
        padding = parameter.shape[0] * tensor - model.vocab_size
        whole = torch.nn.functional.pad(whole, (0, 0, 0, padding))
    return _shard(name, whole, parameter, model, rank, tensor)
