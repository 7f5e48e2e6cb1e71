"""Random weights that do not depend on the layout: each logical tensor is drawn whole, from its own name."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from megatron_rl.config.model import ModelConfig
from megatron_rl.resharding.spec import LogicalTensor, RankFragments

_RESIDUAL_PROJECTIONS = ("o_proj.weight", "down_proj.weight")


def draw_logical_tensor(tensor: LogicalTensor, num_layers: int, seed: int, device: torch.device) -> Tensor:
    """One tensor of a fresh model, f32 on ``device``.

    Norm weights are 1 and biases 0; matrices are normal with std 0.02, and those that write into the residual stream
    with 0.02 / sqrt(2 * num_layers) (Radford et al. 2019). The same seed and name give the same numbers on every rank
    of one device type.
    """
    if tensor.name.endswith("norm.weight"):
        return torch.ones(tensor.shape, device=device)
    if tensor.name.endswith(".bias"):
        return torch.zeros(tensor.shape, device=device)
    digest = hashlib.blake2b(f"{seed}:{tensor.name}".encode(), digest_size=7).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "big"))
    std = 0.02 / math.sqrt(2 * num_layers) if tensor.name.endswith(_RESIDUAL_PROJECTIONS) else 0.02
    return torch.empty(tensor.shape, device=device).normal_(0.0, std, generator=generator)


@torch.no_grad()
def fill_random(
    model: ModelConfig,
    logical_tensors: tuple[LogicalTensor, ...],
    fragments: RankFragments,
    parameters: Mapping[str, Tensor],
    seed: int,
) -> None:
    """Write this rank's fragments of a fresh model; padded rows are left as they are.

    Args:
        model: the shape.
        logical_tensors: all tensors of the model.
        fragments: what this rank stores.
        parameters: its parameters by buffer name, any dtype.
        seed: of the whole model.
    """
    by_tensor: dict[str, list[int]] = {}
    for index, fragment in enumerate(fragments):
        by_tensor.setdefault(fragment.tensor, []).append(index)
    for tensor in logical_tensors:
        if tensor.name not in by_tensor:
            continue
        device = parameters[fragments[by_tensor[tensor.name][0]].buffer].device
        drawn = draw_logical_tensor(tensor, model.num_layers, seed, device)
        for index in by_tensor[tensor.name]:
            fragment = fragments[index]
            parameter = parameters[fragment.buffer]
            target = parameter.as_strided(fragment.shape, fragment.strides, parameter.storage_offset() + fragment.offset)
            box = tuple(slice(a, b) for a, b in zip(fragment.start, fragment.stop, strict=True))
            target.copy_(drawn[box])
