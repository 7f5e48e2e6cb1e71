"""Copies between padded rows and packed documents: one launch, no index tensors, no host sync.

Shape suffixes: B rows, S padded cells, T packed tokens, D documents, W elements of one token.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _copy_documents(padded, packed, starts_D, cu_seqlens, width, max_seqlen, BACK: tl.constexpr, BLOCK: tl.constexpr):
    document = tl.program_id(0)
    first = tl.load(cu_seqlens + document).to(tl.int64)
    length = tl.load(cu_seqlens + document + 1).to(tl.int64) - first
    at = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.minimum(length, max_seqlen) * width
    cells = padded + tl.load(starts_D + document).to(tl.int64) * width + at
    tokens = packed + first * width + at
    if BACK:
        tl.store(cells, tl.load(tokens, mask=inside), mask=inside)
    else:
        tl.store(tokens, tl.load(cells, mask=inside), mask=inside)


def _copy(padded: Tensor, packed: Tensor, starts_D: Tensor, cu_seqlens: Tensor, max_seqlen: int, back: bool) -> None:
    width = packed[0].numel() if packed.shape[0] else 0
    if width * max_seqlen * starts_D.numel() == 0:
        return
    grid = (starts_D.numel(), triton.cdiv(max_seqlen * width, BLOCK))
    _copy_documents[grid](padded, packed, starts_D, cu_seqlens, width, max_seqlen, BACK=back, BLOCK=BLOCK)


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded_BS: Tensor, starts_D: Tensor, cu_seqlens: Tensor, num_tokens: int, max_seqlen: int) -> Tensor:
        ctx.save_for_backward(starts_D, cu_seqlens)
        ctx.shape, ctx.max_seqlen = padded_BS.shape[:2], max_seqlen
        packed_T = torch.zeros(num_tokens, *padded_BS.shape[2:], dtype=padded_BS.dtype, device=padded_BS.device)
        _copy(padded_BS.contiguous(), packed_T, starts_D, cu_seqlens, max_seqlen, back=False)
        return packed_T

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor | None, ...]:
        starts_D, cu_seqlens = ctx.saved_tensors
        return _Unpack.apply(grad_T, starts_D, cu_seqlens, *ctx.shape, ctx.max_seqlen), None, None, None, None


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, packed_T: Tensor, starts_D: Tensor, cu_seqlens: Tensor, num_rows: int, num_cells: int, max_seqlen: int
    ) -> Tensor:
        ctx.save_for_backward(starts_D, cu_seqlens)
        ctx.num_tokens, ctx.max_seqlen = packed_T.shape[0], max_seqlen
        shape = (num_rows, num_cells, *packed_T.shape[1:])
        padded_BS = torch.zeros(shape, dtype=packed_T.dtype, device=packed_T.device)
        _copy(padded_BS, packed_T.contiguous(), starts_D, cu_seqlens, max_seqlen, back=True)
        return padded_BS

    @staticmethod
    def backward(ctx: Any, grad_BS: Tensor) -> tuple[Tensor | None, ...]:
        starts_D, cu_seqlens = ctx.saved_tensors
        grad = _Pack.apply(grad_BS, starts_D, cu_seqlens, ctx.num_tokens, ctx.max_seqlen)
        return grad, None, None, None, None, None


def pack_triton(padded_BS: Tensor, starts_D: Tensor, cu_seqlens: Tensor, num_tokens: int, max_seqlen: int) -> Tensor:
    """See :func:`kernels.pack.pack`."""
    packed_T: Tensor = _Pack.apply(padded_BS, starts_D.contiguous(), cu_seqlens.contiguous(), num_tokens, max_seqlen)
    return packed_T


def unpack_triton(
    packed_T: Tensor, starts_D: Tensor, cu_seqlens: Tensor, num_rows: int, num_cells: int, max_seqlen: int
) -> Tensor:
    """See :func:`kernels.pack.unpack`."""
    padded_BS: Tensor = _Unpack.apply(packed_T, starts_D.contiguous(), cu_seqlens.contiguous(), num_rows, num_cells, max_seqlen)
    return padded_BS
