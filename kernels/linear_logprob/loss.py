"""A token loss evaluated where the logits are: three matrix products, since per-token gradients are known at once.

Each cut of tokens keeps its logits in half precision until its loss is known, turns them into their gradient in place
and feeds both backward products. Losses that tie tokens of different cuts together (sequence-level ratios) need
recompute.py instead.

Shape suffixes: N positions, C positions of a cut, V vocabulary rows of this rank, H hidden, K tiles across V.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from kernels.linear_logprob.products import add_product, product_f32
from kernels.linear_logprob.stats import RowStats, combine
from kernels.linear_logprob.tiles import Tiling, Workspace, wide_tiling
from kernels.linear_logprob.triton import absorb_tile, differentiate_kept, new_stats, scale_in_place

ROW_ALIGNMENT = 64
"""Kept rows start at multiples of this many elements, as the matrix units want."""


@dataclass(frozen=True, slots=True)
class TokenGradients:
    """What a token loss answers for one cut."""

    loss: Tensor
    """f32 scalar, the cut's share of the loss."""
    grad_logprobs_C: Tensor
    """f32."""
    grad_entropy_C: Tensor | None
    """f32; None where the loss has no entropy term."""


TokenLoss = Callable[[slice, Tensor, Tensor | None], TokenGradients]
"""``token_loss(tokens, logprobs_C, entropy_C)``; entropy is None unless asked for."""


def differentiated(loss: Callable[[slice, Tensor, Tensor | None], Tensor]) -> TokenLoss:
    """Make a :data:`TokenLoss` of any differentiable scalar loss, through autograd on ``[C]`` tensors."""

    def token_loss(tokens: slice, logprobs_C: Tensor, entropy_C: Tensor | None) -> TokenGradients:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (logprobs_C, entropy_C) if x is not None]
            value = loss(tokens, leaves[0], leaves[1] if entropy_C is not None else None)
            grads = torch.autograd.grad(value, leaves, allow_unused=True)
        grad_logprobs_C = torch.zeros_like(logprobs_C) if grads[0] is None else grads[0]
        return TokenGradients(value.detach(), grad_logprobs_C, grads[1] if entropy_C is not None else None)

    return token_loss


@dataclass(frozen=True, slots=True)
class _Options:
    """Everything but tensors."""

    token_loss: TokenLoss
    temperature: float
    with_entropy: bool
    group: ProcessGroup | None
    tiling: Tiling
    half_logits: bool


class _Cuts:
    """Buffers and running gradients of one call."""

    def __init__(self, hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, options: _Options, with_weight: bool) -> None:
        self.hidden_NH, self.weight_VH, self.targets_N, self.options = hidden_NH, weight_VH, targets_N, options
        device, dtype, (num_rows, num_hidden) = hidden_NH.device, hidden_NH.dtype, weight_VH.shape
        tiling, self.half_logits = options.tiling, options.half_logits
        self.row_cuts = tiling.row_cuts(num_rows)
        cut = min(tiling.num_tokens, hidden_NH.shape[0])
        stride = -(-num_rows // ROW_ALIGNMENT) * ROW_ALIGNMENT
        self._kept = torch.empty(cut, stride, dtype=dtype, device=device)[:, :num_rows]
        self._logits = Workspace(0 if self.half_logits else cut * min(tiling.num_rows, num_rows), torch.float32, device)
        self._shift = Workspace(len(self.row_cuts) * cut, torch.float32, device)
        self._total = torch.empty(cut, num_hidden, dtype=torch.float32, device=device)
        self.grad_hidden_NH = torch.zeros_like(hidden_NH)
        self.grad_weight_VH = torch.empty_like(weight_VH) if with_weight else None
        self._num_done = 0

    def forward(self, tokens: slice) -> Tensor:
        """Fill the kept logits of a cut; its statistics ``[4, C]``."""
        hidden_CH = self.hidden_NH[tokens]
        num_tokens = hidden_CH.shape[0]
        stats_4C = new_stats(num_tokens, hidden_CH.device)
        kept_CV, shift_KC = self._kept[:num_tokens], self._shift.tile(len(self.row_cuts), num_tokens)
        for tile, rows in enumerate(self.row_cuts):
            weight_HR = self.weight_VH[rows].T
            if self.half_logits:
                logits_CR = kept_CV[:, rows]
                torch.mm(hidden_CH, weight_HR, out=logits_CR)
            else:
                logits_CR = self._logits.tile(num_tokens, rows.stop - rows.start)
                product_f32(hidden_CH, weight_HR, logits_CR)
            absorb_tile(
                logits_CR,
                self.targets_N[tokens],
                stats_4C,
                first_row=rows.start,
                temperature=self.options.temperature,
                with_entropy=self.options.with_entropy,
                kept_CV=None if self.half_logits else kept_CV,
                shift_C=None if self.half_logits else shift_KC[tile],
            )
        return stats_4C

    def backward(self, tokens: slice, stats: RowStats, upstream: TokenGradients) -> None:
        """Add the gradients of the cut whose logits are kept."""
        if not self.row_cuts:
            return
        hidden_CH = self.hidden_NH[tokens]
        kept_CV, total_CH = self._kept[: hidden_CH.shape[0]], self._total[: hidden_CH.shape[0]]
        shift_KC = None if self.half_logits else self._shift.tile(len(self.row_cuts), hidden_CH.shape[0])
        differentiate_kept(
            kept_CV,
            shift_KC,
            self.targets_N[tokens],
            stats.log_total_N,
            stats.entropy_N,
            upstream.grad_logprobs_C.contiguous(),
            None if upstream.grad_entropy_C is None else upstream.grad_entropy_C.contiguous(),
            tile_rows=self.options.tiling.num_rows,
            temperature=self.options.temperature,
        )
        product_f32(kept_CV, self.weight_VH, total_CH)
        self.grad_hidden_NH[tokens] = total_CH
        if self.grad_weight_VH is not None:
            self._add_weight_gradient(self.grad_weight_VH, kept_CV.T, hidden_CH)
        self._num_done += 1

    def _add_weight_gradient(self, total_VH: Tensor, grad_VC: Tensor, hidden_CH: Tensor) -> None:
        if self._num_done == 0:
            torch.mm(grad_VC, hidden_CH, out=total_VH)
        else:
            add_product(total_VH, grad_VC, hidden_CH)

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """Of hidden states and weight, after the last cut."""
        if self._num_done == 0 and self.grad_weight_VH is not None:
            self.grad_weight_VH.zero_()
        return self.grad_hidden_NH, self.grad_weight_VH


class _LinearTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, options: _Options) -> Tensor:
        cuts = _Cuts(hidden_NH, weight_VH, targets_N, options, ctx.needs_input_grad[1])
        loss = torch.zeros((), dtype=torch.float32, device=hidden_NH.device)
        for tokens in options.tiling.token_cuts(hidden_NH.shape[0]):
            stats = combine(cuts.forward(tokens), options.group)
            upstream = options.token_loss(tokens, stats.logprobs_N, stats.entropy_N if options.with_entropy else None)
            loss += upstream.loss
            cuts.backward(tokens, stats, upstream)
        ctx.save_for_backward(*cuts.gradients())
        ctx.used = False
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        # In place: the gradients belong to this op, and a second copy of the weight's would double the peak.
        if ctx.used:
            raise RuntimeError("linear_token_loss: its gradients are handed out once; run the forward pass again")
        ctx.used = True
        grads = ctx.saved_tensors
        for grad in grads:
            if grad is not None:
                scale_in_place(grad, grad_loss)
        return *grads, None, None


def linear_token_loss_triton(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    token_loss: TokenLoss,
    *,
    temperature: float,
    with_entropy: bool,
    group: ProcessGroup | None,
    rows_per_rank: int | None = None,
    tiling: Tiling | None = None,
    half_logits: bool = False,
) -> Tensor:
    """See :func:`kernels.linear_logprob.linear_token_loss`."""
    if tiling is None:
        # Each cut is a collective: ranks with fewer rows must not cut in another way.
        assert group is None or rows_per_rank is not None, "rows_per_rank is needed with a group"
        num_rows = weight_VH.shape[0] if rows_per_rank is None else rows_per_rank
        tiling = wide_tiling(hidden_NH.shape[0], num_rows, hidden_NH.element_size())
    options = _Options(token_loss, temperature, with_entropy, group, tiling, half_logits)
    loss: Tensor = _LinearTokenLoss.apply(  # type: ignore[no-untyped-call]
        hidden_NH.contiguous(), weight_VH.contiguous(), targets_N.contiguous(), options
    )
    return loss
