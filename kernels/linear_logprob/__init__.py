"""LM head, log-probability, entropy and (optionally) the token loss, without the ``[tokens, vocabulary]`` logits.

Two ops. :func:`linear_logprob` is differentiable in log-probs and entropy and recomputes the logits backward.
:func:`linear_token_loss` evaluates a token loss inside and saves that product. On CPU both run on the chunked path of
``kernels/vocab_logprob``.

Shape suffixes: N positions, V vocabulary rows of this rank, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from kernels.dispatch import BF16_AND_SINGLE, runs_on_triton, unsupported
from kernels.linear_logprob.reference import linear_logprob_reference
from kernels.vocab_logprob import vocab_logprob

__all__ = ["linear_logprob", "linear_logprob_reference", "linear_token_loss"]

CPU_CHUNK_ELEMENTS = 2**26
"""Logits of one chunk on CPU: 256 MiB of f32."""


def linear_logprob(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target under ``softmax(hidden @ weight^T / temperature)``, and the entropy if asked.

    Logits are f32 products of the inputs and exist for one tile (at most about 1 GiB) at a time. The gradient of
    ``hidden_NH`` adds up in f32 and is rounded once; it is this rank's part of a sum over ``group``. Each element of
    the weight's gradient is one f32 sum, rounded once.

    Args:
        hidden_NH: last hidden states, bf16 or f32, equal on every rank of the group.
        weight_VH: this rank's rows of the LM head, same dtype, padded rows left out (there may be none left).
        targets_N: i64 row of each target relative to this rank's first row; out of range on all ranks but its owner.
        temperature: divides the logits, > 0.
        with_entropy: also return the entropy, differentiable. Without it no work is done for it.
        group: tensor-parallel ranks; None = the whole vocabulary is here.

    Returns ``logprobs [N]`` f32 and ``entropy [N]`` f32 (nats) or None.

    Collectives: one all-gather of 16 bytes per position over ``group`` in the forward pass (on CPU two all-reduces).

    Raises ValueError on CUDA for another dtype; for mixed dtypes, other shapes, or targets that are not i64.
    """
    assert temperature > 0
    if not _checked(hidden_NH, weight_VH, targets_N):
        return vocab_logprob(
            hidden_NH,
            weight_VH,
            targets_N,
            temperature=temperature,
            with_entropy=with_entropy,
            chunk_size=max(1, CPU_CHUNK_ELEMENTS // max(1, weight_VH.shape[0])),
            group=group,
        )
    from kernels.linear_logprob.recompute import linear_logprob_triton

    return linear_logprob_triton(
        hidden_NH, weight_VH, targets_N, temperature=temperature, with_entropy=with_entropy, group=group
    )


def linear_token_loss(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    loss: Callable[[slice, Tensor, Tensor | None], Tensor],
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    group: ProcessGroup | None = None,
    rows_per_rank: int | None = None,
    half_logits: bool = False,
) -> Tensor:
    """``sum over cuts of loss(tokens, logprobs, entropy)`` with the gradients computed on the way.

    Gradients reach ``hidden_NH`` and ``weight_VH`` only. Arguments as in :func:`linear_logprob`, and

    * ``loss``: called once per cut of positions (with an empty one if there are none) with the slice, f32 log-probs
      ``[C]`` and entropy ``[C]`` (None unless ``with_entropy``); answers a differentiable scalar, this cut's share of the
      loss. It may put detached metrics aside.
    * ``rows_per_rank``: rows a rank of the group holds at most, padding included: the same number on all ranks, because
      it decides how positions are cut. Needed with a group.
    * ``half_logits``: let the products write logits in the dtype of ``hidden_NH`` (CUDA only): a third less memory
      traffic, at the price of log-probs that are off by a rounding of the logit, about 0.03 at 16 in bf16.

    The weight's gradient is rounded to its dtype after each cut (4 at 16,384 x 151,936): in bf16 about twice the
    rounding error of a single rounding. Softmax statistics are those of f32 logits; the gradient is taken from logits
    kept in the dtype of ``hidden_NH`` relative to a running maximum.

    Returns f32 scalar. Its backward pass runs once: the gradients it hands out are its only copy.

    Collectives: one all-gather of 16 bytes per position over ``group``, cut by cut.
    """
    assert temperature > 0
    if not _checked(hidden_NH, weight_VH, targets_N) or hidden_NH.shape[0] == 0:
        logprobs_N, entropy_N = linear_logprob(
            hidden_NH, weight_VH, targets_N, temperature=temperature, with_entropy=with_entropy, group=group
        )
        return loss(slice(0, hidden_NH.shape[0]), logprobs_N, entropy_N)
    from kernels.linear_logprob.loss import differentiated, linear_token_loss_triton

    return linear_token_loss_triton(
        hidden_NH,
        weight_VH,
        targets_N,
        differentiated(loss),
        temperature=temperature,
        with_entropy=with_entropy,
        group=group,
        rows_per_rank=rows_per_rank,
        half_logits=half_logits,
    )


def _checked(hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor) -> bool:
    """Whether the Triton version runs; ValueError for what neither version takes."""
    fast = runs_on_triton("linear_logprob", BF16_AND_SINGLE, hidden_NH, weight_VH, beside=[targets_N])
    if hidden_NH.dim() != 2 or weight_VH.dim() != 2 or hidden_NH.shape[1] != weight_VH.shape[1]:
        shapes = f"hidden {tuple(hidden_NH.shape)} with weight {tuple(weight_VH.shape)}"
        raise unsupported("linear_logprob", f"{shapes}, only [N, H] with [V, H]")
    if hidden_NH.dtype != weight_VH.dtype:
        raise unsupported("linear_logprob", f"hidden {hidden_NH.dtype} with weight {weight_VH.dtype}")
    if targets_N.dtype != torch.int64 or targets_N.shape != hidden_NH.shape[:1]:
        raise unsupported("linear_logprob", f"targets {targets_N.dtype} {tuple(targets_N.shape)}, only i64 [N]")
    return fast
