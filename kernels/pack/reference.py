"""Specification of packing: one copy per document.

Shape suffixes: B rows, S padded cells, T packed tokens, D documents; trailing dims are carried along.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack_reference(padded_BS: Tensor, starts_D: Tensor, cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    """``packed[cu_seqlens[d] + i] = padded.flat[starts[d] + i]``; 0 behind the last document."""
    flat = padded_BS.flatten(0, 1)
    packed = torch.zeros(num_tokens, *flat.shape[1:], dtype=flat.dtype, device=flat.device)
    bounds = cu_seqlens.tolist()
    for start, first, last in zip(starts_D.tolist(), bounds[:-1], bounds[1:], strict=True):
        packed[first:last] = flat[start : start + last - first]
    return packed


def unpack_reference(packed_T: Tensor, starts_D: Tensor, cu_seqlens: Tensor, num_rows: int, num_cells: int) -> Tensor:
    """The inverse of :func:`pack_reference` onto zeros, ``[num_rows, num_cells]``."""
    flat = torch.zeros(num_rows * num_cells, *packed_T.shape[1:], dtype=packed_T.dtype, device=packed_T.device)
    bounds = cu_seqlens.tolist()
    for start, first, last in zip(starts_D.tolist(), bounds[:-1], bounds[1:], strict=True):
        flat[start : start + last - first] = packed_T[first:last]
    return flat.view(num_rows, num_cells, *packed_T.shape[1:])
