"""The gated activation between the two projections of a transformer's feed-forward part."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import HALF_AND_SINGLE, runs_on_triton, unsupported
from kernels.swiglu.reference import swiglu_reference

__all__ = ["swiglu", "swiglu_reference"]


def swiglu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[..., 2F]``, gate first; ``[..., F]`` in the same dtype, rounded once from f32.

    Only the input is kept for the backward pass. Raises ValueError on CUDA for dtypes other than bf16, f16 and f32, and
    for an odd last dim.
    """
    if gate_up.shape[-1] % 2:
        raise unsupported("swiglu", f"an odd last dim, {gate_up.shape[-1]}")
    if not runs_on_triton("swiglu", HALF_AND_SINGLE, gate_up):
        return swiglu_reference(gate_up)
    from kernels.swiglu.triton import swiglu_triton

    return swiglu_triton(gate_up)
