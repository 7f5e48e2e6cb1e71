"""Padded rows to packed documents and back, differentiable, for any number of trailing dims.

Shape suffixes: B rows, S padded cells, T packed tokens, D documents.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import runs_on_triton, unsupported
from kernels.pack.reference import pack_reference, unpack_reference

__all__ = ["pack", "pack_reference", "unpack", "unpack_reference"]

COPIED = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.bool,
)


def pack(padded_BS: Tensor, starts_D: Tensor, cu_seqlens: Tensor, *, num_tokens: int, max_seqlen: int) -> Tensor:
    """Lay documents one behind the other: ``packed[cu_seqlens[d] + i] = padded.flat[starts[d] + i]``.

    Args:
        padded_BS: any dtype, trailing dims allowed.
        starts_D: i64 flat cell (``row * S + column``) of each document's first token.
        cu_seqlens: i32 or i64 ``[D + 1]``, bounds of the documents in the pack, the first 0.
        num_tokens: T, at least the last bound; what lies behind it is 0.
        max_seqlen: longest document. With ``num_tokens`` on the host, nothing waits for the device.

    Returns ``[T, ...]``. Raises ValueError on CUDA for other index dtypes or a dtype that cannot be copied.
    """
    if not _checked(padded_BS, starts_D, cu_seqlens):
        return pack_reference(padded_BS, starts_D, cu_seqlens, num_tokens)
    from kernels.pack.triton import pack_triton

    return pack_triton(padded_BS, starts_D, cu_seqlens, num_tokens, max_seqlen)


def unpack(packed_T: Tensor, starts_D: Tensor, cu_seqlens: Tensor, *, num_rows: int, num_cells: int, max_seqlen: int) -> Tensor:
    """The inverse of :func:`pack`: documents back into ``[num_rows, num_cells, ...]``, 0 elsewhere."""
    if not _checked(packed_T, starts_D, cu_seqlens):
        return unpack_reference(packed_T, starts_D, cu_seqlens, num_rows, num_cells)
    from kernels.pack.triton import unpack_triton

    return unpack_triton(packed_T, starts_D, cu_seqlens, num_rows, num_cells, max_seqlen)


def _checked(tokens: Tensor, starts_D: Tensor, cu_seqlens: Tensor) -> bool:
    if starts_D.dtype != torch.int64 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise unsupported("pack", f"starts {starts_D.dtype} and cu_seqlens {cu_seqlens.dtype}, only i64 and i32 or i64")
    return runs_on_triton("pack", COPIED, tokens, beside=[starts_D, cu_seqlens])
