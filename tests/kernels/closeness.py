"""Closeness of a kernel's result to its reference."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCES = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Relative error in norm by the dtype the kernel works in."""


def assert_close(actual: Tensor | None, expected: Tensor | None, dtype: torch.dtype) -> None:
    """``|actual - expected| <= tolerance * |expected|`` in norm, no NaN, and the same shape."""
    assert actual is not None and expected is not None
    assert actual.shape == expected.shape
    wanted = expected.detach().double().cpu()
    error = (actual.detach().double().cpu() - wanted).norm()
    assert error <= TOLERANCES[dtype] * wanted.norm() + 1e-30, f"relative error {(error / wanted.norm()).item():.2e}"
