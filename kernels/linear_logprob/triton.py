"""The passes over a tile of logits between the matrix products.

Shape suffixes: C positions of a tile, R its vocabulary rows, V all vocabulary rows of this rank, K tiles across V.
Each program handles one position: no atomics, so results do not depend on the order of programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOWEST = -1.0e30
"""Stands for minus infinity where a difference of two of them must not be NaN."""
MAX_TILE_ROWS = 8192
"""A tile's row is held in registers as a whole."""
SCALE_BLOCK = 8192


@triton.jit
def _absorb_tile(
    logits_CR,
    targets_C,
    top_C,
    total_C,
    moment_C,
    picked_C,
    kept_CV,
    shift_C,
    first_row,
    num_rows,
    logits_stride,
    kept_stride,
    scale,
    KEEP: tl.constexpr,
    ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    position = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_rows
    row = logits_CR + position * logits_stride
    logits = tl.where(inside, tl.load(row + columns, mask=inside, other=0.0).to(tl.float32) * scale, -1.0e30)
    old_top = tl.load(top_C + position)
    top = tl.maximum(old_top, tl.max(logits, axis=0))
    shifted = logits - top
    weights = tl.exp(shifted)
    old_total = tl.load(total_C + position)
    decay = tl.exp(old_top - top)
    tl.store(total_C + position, old_total * decay + tl.sum(weights, axis=0))
    if ENTROPY:
        old_moment = tl.load(moment_C + position) + old_total * (old_top - top)
        tl.store(moment_C + position, old_moment * decay + tl.sum(weights * shifted, axis=0))
    tl.store(top_C + position, top)
    local = tl.load(targets_C + position) - first_row
    owned = (local >= 0) & (local < num_rows)
    tl.store(picked_C + position, tl.load(row + local, mask=owned, other=0.0).to(tl.float32) * scale, mask=owned)
    if KEEP:
        tl.store(shift_C + position, top)
        kept = kept_CV + position * kept_stride + first_row + columns
        tl.store(kept, shifted.to(kept_CV.dtype.element_ty), mask=inside)


@triton.jit
def _differentiate(
    logits,
    shift_KC,
    targets_C,
    log_total_C,
    entropy_C,
    grad_logprobs_C,
    grad_entropy_C,
    grad,
    first_row,
    num_rows,
    num_positions,
    logits_stride,
    grad_stride,
    logit_scale,
    grad_scale,
    SHIFTED: tl.constexpr,
    ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    position = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    columns = tile * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_rows
    logprobs = tl.load(logits + position * logits_stride + columns, mask=inside, other=0.0).to(tl.float32) * logit_scale
    if SHIFTED:
        logprobs += tl.load(shift_KC + tile.to(tl.int64) * num_positions + position)
    logprobs -= tl.load(log_total_C + position)
    upstream = tl.load(grad_logprobs_C + position)
    # d logprob / d logit_j = [j = target] - p_j;  d entropy / d logit_j = -p_j (log p_j + entropy)
    slope = upstream
    if ENTROPY:
        slope += tl.load(grad_entropy_C + position) * (logprobs + tl.load(entropy_C + position))
    local = tl.load(targets_C + position) - first_row
    result = tl.where(columns == local, upstream, 0.0) - tl.exp(logprobs) * slope
    tl.store(grad + position * grad_stride + columns, (result * grad_scale).to(grad.dtype.element_ty), mask=inside)


@triton.jit
def _scale(values_N, factor, num_values, BLOCK: tl.constexpr):
    by = tl.load(factor)
    if by != 1.0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < num_values
        scaled = tl.load(values_N + at, mask=inside, other=0.0).to(tl.float32) * by
        tl.store(values_N + at, scaled.to(values_N.dtype.element_ty), mask=inside)


def _num_warps(block: int) -> int:
    return max(1, min(8, block // 512))


def absorb_tile(
    logits_CR: Tensor,
    targets_C: Tensor,
    stats_4C: Tensor,
    *,
    first_row: int,
    temperature: float,
    with_entropy: bool,
    kept_CV: Tensor | None = None,
    shift_C: Tensor | None = None,
) -> None:
    """Add a tile of logits to the running statistics; optionally keep the logits for :func:`differentiate_kept`.

    A kept logit is stored as its distance from the running maximum, ``shift_C``: logits that carry probability lie near
    0 there, where half precision is finest.

    Args:
        logits_CR: before the temperature, unit stride along R; f32, or the hidden states' dtype where that is good enough.
        targets_C: i64 rows of this rank; elsewhere out of ``[0, V)``.
        stats_4C: f32, see stats.py; updated.
        first_row: V index of the tile's first column.
        temperature: divides the logits.
        with_entropy: also keep the moment.
        kept_CV: receives the tile at column ``first_row``; unit stride along V.
        shift_C: f32, receives the maximum the tile is stored relative to.
    """
    num_positions, num_rows = logits_CR.shape
    block = triton.next_power_of_2(num_rows)
    _absorb_tile[(num_positions,)](
        logits_CR,
        targets_C,
        *stats_4C.unbind(0),
        logits_CR if kept_CV is None else kept_CV,
        stats_4C if shift_C is None else shift_C,
        first_row,
        num_rows,
        logits_CR.stride(0),
        0 if kept_CV is None else kept_CV.stride(0),
        1.0 / temperature,
        KEEP=kept_CV is not None,
        ENTROPY=with_entropy,
        BLOCK=block,
        num_warps=_num_warps(block),
    )


def differentiate_tile(
    logits_CR: Tensor,
    grad_CR: Tensor,
    targets_C: Tensor,
    log_total_C: Tensor,
    entropy_C: Tensor,
    grad_logprobs_C: Tensor,
    grad_entropy_C: Tensor | None,
    *,
    first_row: int,
    temperature: float,
) -> None:
    """Write the gradient of a tile of f32 logits, before the temperature, into ``grad_CR`` (dtype of the hidden states)."""
    num_positions, num_rows = logits_CR.shape
    block = triton.next_power_of_2(num_rows)
    _differentiate[(num_positions, 1)](
        logits_CR,
        log_total_C,
        targets_C,
        log_total_C,
        entropy_C,
        grad_logprobs_C,
        grad_logprobs_C if grad_entropy_C is None else grad_entropy_C,
        grad_CR,
        first_row,
        num_rows,
        num_positions,
        logits_CR.stride(0),
        grad_CR.stride(0),
        1.0 / temperature,
        1.0 / temperature,
        SHIFTED=False,
        ENTROPY=grad_entropy_C is not None,
        BLOCK=block,
        num_warps=_num_warps(block),
    )


def differentiate_kept(
    kept_CV: Tensor,
    shift_KC: Tensor | None,
    targets_C: Tensor,
    log_total_C: Tensor,
    entropy_C: Tensor,
    grad_logprobs_C: Tensor,
    grad_entropy_C: Tensor | None,
    *,
    tile_rows: int,
    temperature: float,
) -> None:
    """Turn kept logits into the gradient of the logits before the temperature, in place.

    ``shift_KC`` is what tiles of ``tile_rows`` columns were stored relative to, temperature applied; None = the columns
    hold plain logits, temperature not applied.
    """
    num_positions, num_rows = kept_CV.shape
    assert tile_rows == triton.next_power_of_2(tile_rows)
    _differentiate[(num_positions, triton.cdiv(num_rows, tile_rows))](
        kept_CV,
        log_total_C if shift_KC is None else shift_KC,
        targets_C,
        log_total_C,
        entropy_C,
        grad_logprobs_C,
        grad_logprobs_C if grad_entropy_C is None else grad_entropy_C,
        kept_CV,
        0,
        num_rows,
        num_positions,
        kept_CV.stride(0),
        kept_CV.stride(0),
        1.0 / temperature if shift_KC is None else 1.0,
        1.0 / temperature,
        SHIFTED=shift_KC is not None,
        ENTROPY=grad_entropy_C is not None,
        BLOCK=tile_rows,
        num_warps=_num_warps(tile_rows),
    )


def scale_in_place(values: Tensor, factor: Tensor) -> None:
    """``values *= factor``, f32 scalar; where it is 1 nothing is read, written or waited for."""
    assert values.is_contiguous() and factor.dtype == torch.float32
    if values.numel() > 0:
        _scale[(triton.cdiv(values.numel(), SCALE_BLOCK),)](values, factor, values.numel(), BLOCK=SCALE_BLOCK)


def new_stats(num_positions: int, device: torch.device) -> Tensor:
    """Statistics of no logits at all, f32 ``[4, C]``."""
    stats = torch.zeros(4, num_positions, dtype=torch.float32, device=device)
    stats[0] = LOWEST
    return stats
