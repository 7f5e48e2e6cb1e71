"""Specification of the gated activation."""

from __future__ import annotations

import torch
from torch import Tensor


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``, gate the first half of the last dim (Shazeer 2020, eq. 6); in at least f32, rounded once."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
