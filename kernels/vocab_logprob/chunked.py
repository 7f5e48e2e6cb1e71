"""LM-head log-probability without the logit matrix: chunks of positions, logits recomputed in the backward pass.

Shape suffixes: N positions, C positions of one chunk, V vocabulary rows of this rank, H hidden.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def _project(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` accumulated and returned in f32, whatever the inputs' dtype."""
    if a.dtype == torch.float32:
        return a @ b
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _chunk_stats(logits_CV: Tensor, targets_C: Tensor, with_entropy: bool) -> Tensor:
    """This rank's ``[4, C]``: maximum, sum of exp(logit - max), sum of logit * exp(logit - max), target's logit.

    ``targets_C`` are local rows; one outside ``[0, V)`` belongs to another rank and counts 0.
    """
    num_rows = logits_CV.shape[1]
    top_C = logits_CV.amax(-1)
    owned_C = (targets_C >= 0) & (targets_C < num_rows)
    picked_C = logits_CV.gather(-1, targets_C.clamp(0, num_rows - 1)[:, None])[:, 0].where(owned_C, 0.0)
    weights_CV = (logits_CV - top_C[:, None]).exp_()
    total_C = weights_CV.sum(-1)
    moment_C = weights_CV.mul_(logits_CV).sum(-1) if with_entropy else torch.zeros_like(total_C)
    return torch.stack((top_C, total_C, moment_C, picked_C))


def _combine(stats_4N: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    """Join the ranks' statistics: log of the partition sum, mean logit, target's logit, each ``[N]``."""
    top_N, sums_3N = stats_4N[0].clone(), stats_4N[1:]
    if group is not None:
        dist.all_reduce(top_N, op=dist.ReduceOp.MAX, group=group)
    # A rank whose rows are all padding has top = -inf and sums 0.
    sums_3N[:2] *= (stats_4N[0] - top_N).exp()
    if group is not None:
        dist.all_reduce(sums_3N, group=group)
    total_N, moment_N, picked_N = sums_3N
    return top_N + total_N.log(), moment_N / total_N, picked_N


class _VocabLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        targets_N: Tensor,
        temperature: float,
        with_entropy: bool,
        chunk_size: int,
        group: ProcessGroup | None,
    ) -> tuple[Tensor, Tensor]:
        stats_4N = hidden_NH.new_zeros((4, hidden_NH.shape[0]), dtype=torch.float32)
        if weight_VH.shape[0] == 0:
            stats_4N[0] = -torch.inf
        else:
            for start in range(0, hidden_NH.shape[0], chunk_size):
                chunk = slice(start, start + chunk_size)
                logits_CV = _project(hidden_NH[chunk], weight_VH.T).div_(temperature)
                stats_4N[:, chunk] = _chunk_stats(logits_CV, targets_N[chunk], with_entropy)
        log_total_N, mean_logit_N, picked_N = _combine(stats_4N, group)
        entropy_N = log_total_N - mean_logit_N
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N, log_total_N, entropy_N)
        ctx.temperature, ctx.with_entropy, ctx.chunk_size = temperature, with_entropy, chunk_size
        return picked_N - log_total_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_logprobs_N: Tensor, grad_entropy_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, targets_N, log_total_N, entropy_N = ctx.saved_tensors
        grad_hidden_NH = torch.zeros_like(hidden_NH)
        grad_weight_VH = torch.zeros(weight_VH.shape, dtype=torch.float32, device=weight_VH.device)
        num_rows = weight_VH.shape[0]
        for start in range(0, hidden_NH.shape[0] if num_rows else 0, ctx.chunk_size):
            chunk = slice(start, start + ctx.chunk_size)
            logprobs_CV = _project(hidden_NH[chunk], weight_VH.T).div_(ctx.temperature)
            logprobs_CV -= log_total_N[chunk, None]
            # d logprob / d logit_j = [j = target] - p_j;  d entropy / d logit_j = -p_j (log p_j + entropy)
            factor_CV = -grad_logprobs_N[chunk, None]
            if ctx.with_entropy:
                factor_CV = factor_CV - grad_entropy_N[chunk, None] * (logprobs_CV + entropy_N[chunk, None])
            grad_CV = logprobs_CV.exp_().mul_(factor_CV)
            targets_C = targets_N[chunk]
            owned_C = (targets_C >= 0) & (targets_C < num_rows)
            grad_CV.scatter_add_(
                -1, targets_C.clamp(0, num_rows - 1)[:, None], grad_logprobs_N[chunk].where(owned_C, 0.0)[:, None]
            )
            grad_CV = grad_CV.div_(ctx.temperature).to(hidden_NH.dtype)
            grad_hidden_NH[chunk] = grad_CV @ weight_VH
            grad_weight_VH += _project(grad_CV.T, hidden_NH[chunk])
        return grad_hidden_NH, grad_weight_VH.to(weight_VH.dtype), None, None, None, None, None


def vocab_logprob_chunked(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float,
    with_entropy: bool,
    chunk_size: int,
    group: ProcessGroup | None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target, and entropy if asked, over a vocabulary cut over the ranks of ``group``.

    Peak extra memory is about three f32 ``[chunk_size, V]`` matrices, forward and backward, plus one f32 copy of the
    weight's gradient. The gradient of ``hidden_NH`` is this rank's part: the caller adds the parts up.

    Args:
        hidden_NH: last hidden states, the same on every rank of the group.
        weight_VH: this rank's rows of the LM head, padded rows left out (there may be none left).
        targets_N: i64 row of each target relative to this rank's first row; out of range on all ranks but its owner.
        temperature: divides the logits, > 0.
        with_entropy: also return the entropy, differentiable. Without it no work is done for it.
        chunk_size: positions whose logits exist at one time.
        group: tensor-parallel ranks; None = the whole vocabulary is here.

    Returns ``logprobs [N]`` f32 and ``entropy [N]`` f32 or None.

    Collectives: two all-reduces over ``group`` in the forward pass, none in the backward pass.
    """
    logprobs_N, entropy_N = _VocabLogprob.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, targets_N, temperature, with_entropy, chunk_size, group
    )
    return logprobs_N, entropy_N if with_entropy else None
