"""Megatron's marks on a parameter: whether tensor parallelism cuts it, and how."""

from __future__ import annotations

from torch import Tensor


def cut_dim(parameter: Tensor) -> int | None:
    """Dim of which each tensor-parallel rank holds a part; None = every rank holds all of the parameter."""
    marks = vars(parameter)
    return int(marks["partition_dim"]) if marks.get("tensor_model_parallel", False) else None


def num_stacked(parameter: Tensor) -> int:
    """Equal tensors that lie one after the other along the cut dim, each of which is cut on its own."""
    return int(vars(parameter)["partition_stride"])
