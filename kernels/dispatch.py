"""Decides between an op's reference and its Triton version."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

HALF_AND_SINGLE = (torch.bfloat16, torch.float16, torch.float32)
"""Floating dtypes of activations and weights."""
BF16_AND_SINGLE = (torch.bfloat16, torch.float32)
"""Where gradients are as small as one token's share of a loss: f16 would flush them to 0."""
SINGLE = (torch.float32,)
SINGLE_AND_DOUBLE = (torch.float32, torch.float64)


def runs_on_triton(op: str, dtypes: tuple[torch.dtype, ...], *tensors: Tensor, beside: Sequence[Tensor] = ()) -> bool:
    """Whether ``op`` runs as a Triton kernel: on CUDA yes, on CPU no.

    Args:
        op: name of the folder under ``kernels/``, for messages.
        dtypes: what the kernel computes on.
        tensors: all floating arguments.
        beside: masks and indices, of dtypes of their own.

    Raises ValueError where tensors lie on several devices, or on CUDA in a dtype the kernel does not know.
    """
    devices = {tensor.device for tensor in (*tensors, *beside)}
    if len(devices) != 1:
        raise ValueError(f"kernels.{op}: tensors lie on {', '.join(sorted(map(str, devices)))}; move them to one device")
    if not tensors[0].is_cuda:
        return False
    for tensor in tensors:
        if tensor.dtype not in dtypes:
            raise unsupported(op, f"dtype {tensor.dtype}, only {', '.join(map(str, dtypes))}")
    return True


def unsupported(op: str, what: str) -> ValueError:
    """The error for an input no kernel of ``op`` takes; it names the way out."""
    return ValueError(f"kernels.{op}: the Triton kernel does not take {what}; use kernels.{op}.reference instead")
