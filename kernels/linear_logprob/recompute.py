"""Log-probability and entropy as an autograd op: logits are computed once forward and once more backward.

Four matrix products instead of the three a loss inside the op needs (loss.py): per-token gradients are unknown until
the backward pass, and keeping the logits until then is what this op is there to avoid.

Shape suffixes: N positions, V vocabulary rows of this rank, H hidden, R rows of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from kernels.linear_logprob.products import add_product, product_f32
from kernels.linear_logprob.stats import RowStats, combine
from kernels.linear_logprob.tiles import Tiling, Workspace, tall_tiling
from kernels.linear_logprob.triton import absorb_tile, differentiate_tile, new_stats


def row_stats(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float, with_entropy: bool, tiling: Tiling
) -> Tensor:
    """This rank's statistics, f32 ``[4, N]`` (stats.py)."""
    num_tokens, num_rows = hidden_NH.shape[0], weight_VH.shape[0]
    stats_4N = new_stats(num_tokens, hidden_NH.device)
    workspace = Workspace(tiling.num_tokens * min(tiling.num_rows, num_rows), torch.float32, hidden_NH.device)
    for tokens in tiling.token_cuts(num_tokens):
        hidden_CH = hidden_NH[tokens]
        for rows in tiling.row_cuts(num_rows):
            logits_CR = workspace.tile(hidden_CH.shape[0], rows.stop - rows.start)
            product_f32(hidden_CH, weight_VH[rows].T, logits_CR)
            absorb_tile(
                logits_CR,
                targets_N[tokens],
                stats_4N[:, tokens],
                first_row=rows.start,
                temperature=temperature,
                with_entropy=with_entropy,
            )
    return stats_4N


def gradients(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    stats: RowStats,
    grad_logprobs_N: Tensor,
    grad_entropy_N: Tensor | None,
    temperature: float,
    num_tile_rows: int,
    with_weight: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of hidden states (this rank's part) and, if asked, weight.

    Tiles span all tokens: each row of the weight gradient is one product, rounded once. The hidden gradient adds up in
    f32 over tiles.
    """
    grad_weight_VH = torch.zeros_like(weight_VH) if with_weight else None
    total_NH = torch.zeros(hidden_NH.shape, dtype=torch.float32, device=hidden_NH.device)
    num_tokens, num_rows = hidden_NH.shape[0], weight_VH.shape[0]
    if num_tokens == 0 or num_rows == 0:
        return total_NH.to(hidden_NH.dtype), grad_weight_VH
    tiling = Tiling(num_tokens, num_tile_rows)
    size = num_tokens * min(num_tile_rows, num_rows)
    logits = Workspace(size, torch.float32, hidden_NH.device)
    grads = Workspace(size, hidden_NH.dtype, hidden_NH.device)
    for rows in tiling.row_cuts(num_rows):
        weight_RH = weight_VH[rows]
        logits_NR = logits.tile(num_tokens, rows.stop - rows.start)
        grad_NR = grads.tile(*logits_NR.shape)
        product_f32(hidden_NH, weight_RH.T, logits_NR)
        differentiate_tile(
            logits_NR,
            grad_NR,
            targets_N,
            stats.log_total_N,
            stats.entropy_N,
            grad_logprobs_N,
            grad_entropy_N,
            first_row=rows.start,
            temperature=temperature,
        )
        if grad_weight_VH is not None:
            torch.mm(grad_NR.T, hidden_NH, out=grad_weight_VH[rows])
        add_product(total_NH, grad_NR, weight_RH)
    return total_NH.to(hidden_NH.dtype), grad_weight_VH


class _LinearLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        targets_N: Tensor,
        temperature: float,
        with_entropy: bool,
        group: ProcessGroup | None,
        tiling: Tiling,
    ) -> tuple[Tensor, Tensor]:
        stats = combine(row_stats(hidden_NH, weight_VH, targets_N, temperature, with_entropy, tiling), group)
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N, stats.logprobs_N, stats.entropy_N, stats.log_total_N)
        ctx.temperature, ctx.with_entropy, ctx.num_tile_rows = temperature, with_entropy, tiling.num_rows
        return stats.logprobs_N, stats.entropy_N

    @staticmethod
    def backward(ctx: Any, grad_logprobs_N: Tensor, grad_entropy_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, targets_N, *stats = ctx.saved_tensors
        grad_hidden_NH, grad_weight_VH = gradients(
            hidden_NH,
            weight_VH,
            targets_N,
            RowStats(*stats),
            grad_logprobs_N.contiguous(),
            grad_entropy_N.contiguous() if ctx.with_entropy else None,
            ctx.temperature,
            ctx.num_tile_rows,
            ctx.needs_input_grad[1],
        )
        return grad_hidden_NH, grad_weight_VH, None, None, None, None, None


def linear_logprob_triton(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float,
    with_entropy: bool,
    group: ProcessGroup | None,
    tiling: Tiling | None = None,
) -> tuple[Tensor, Tensor | None]:
    """See :func:`kernels.linear_logprob.linear_logprob`; the backward pass takes the tiling's rows by all tokens."""
    tiling = tiling or tall_tiling(hidden_NH.shape[0], hidden_NH.element_size())
    logprobs_N, entropy_N = _LinearLogprob.apply(  # type: ignore[no-untyped-call]
        hidden_NH.contiguous(), weight_VH.contiguous(), targets_N.contiguous(), temperature, with_entropy, group, tiling
    )
    return logprobs_N, entropy_N if with_entropy else None
