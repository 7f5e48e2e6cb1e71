"""The only door to ``kernels``: operations in the words of the trainer.

Shape suffixes: N positions, C a slice of them, V vocabulary rows of this rank, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributed import ProcessGroup

from kernels.fp8_blocks import BlockScaled as BlockScaled
from kernels.fp8_blocks import prepare_block_scales, prepare_quantise
from kernels.linear_logprob import linear_logprob, linear_token_loss
from kernels.repack import Repack, prepare_repack
from kernels.rmsnorm import rmsnorm
from kernels.rope import rope
from kernels.swiglu import swiglu
from kernels.token_loss import TokenLossInputs as TokenLossInputs
from kernels.token_loss import TokenLossRule as TokenLossRule
from kernels.token_loss import TokenLossSums
from kernels.token_loss import token_loss as _clipped_policy_loss


@dataclass(frozen=True, slots=True)
class VocabShard:
    """Which rows of the LM head a rank holds. Example: vocabulary 251 over 2 ranks: ``VocabShard(128, 256, 251, group)``."""

    start: int
    """First row of this rank."""
    stop: int
    """One past its last row, padding included."""
    vocab_size: int
    """Rows that are tokens; the rest is padding."""
    group: ProcessGroup | None
    """Ranks the vocabulary is cut over; None = one."""

    @property
    def num_real_rows(self) -> int:
        """Rows of this rank that are tokens."""
        return max(0, min(self.stop, self.vocab_size) - self.start)


def token_logprobs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    shard: VocabShard,
    *,
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target token under ``softmax(hidden @ weight^T / temperature)``, and the entropy.

    Padded rows take no part, forward or backward. Logits are f32 and exist for a bounded number of positions at a time.
    The gradient of ``hidden_NH`` is this rank's part of a sum over ``shard.group``.

    Args:
        hidden_NH: last hidden states, equal on every rank of the group.
        weight_VH: this rank's rows of the LM head, padding included.
        targets_N: i64 token ids.
        shard: which rows those are.
        temperature: divides the logits, > 0.
        with_entropy: also return the (differentiable) entropy.

    Returns ``logprobs [N]`` and ``entropy [N]`` (None if not asked), f32, nats.

    Collectives: ``shard.group`` in the forward pass.
    """
    return linear_logprob(
        hidden_NH,
        weight_VH[: shard.num_real_rows],
        targets_N - shard.start,
        temperature=temperature,
        with_entropy=with_entropy,
        group=shard.group,
    )


def token_loss(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    slice_loss: Callable[[slice, Tensor, Tensor | None], Tensor],
    shard: VocabShard,
    *,
    temperature: float,
    with_entropy: bool,
) -> Tensor:
    """``sum over slices of slice_loss(slice, logprobs_C, entropy_C)``, with the gradients of hidden states and weight.

    The same log-probs and entropies as :func:`token_logprobs`, handed over slice by slice of the N positions, at least
    once. The loss of a slice may not depend on other slices. On a GPU this saves one of four matrix products.

    Args:
        hidden_NH: last hidden states, equal on every rank of the group.
        weight_VH: this rank's rows of the LM head, padding included.
        targets_N: i64 token ids.
        slice_loss: answers a differentiable f32 scalar; entropy is None unless asked for.
        shard: which rows those are.
        temperature: divides the logits, > 0.
        with_entropy: also hand over the (differentiable) entropy.

    Returns f32 scalar; its backward pass runs once.

    Collectives: ``shard.group``, slice by slice in the forward pass.
    """
    return linear_token_loss(
        hidden_NH,
        weight_VH[: shard.num_real_rows],
        targets_N - shard.start,
        slice_loss,
        temperature=temperature,
        with_entropy=with_entropy,
        group=shard.group,
        rows_per_rank=shard.stop - shard.start,
    )


def clipped_policy_loss(inputs: TokenLossInputs, rule: TokenLossRule) -> TokenLossSums:
    """PPO's clipped loss with entropy bonus and KL term, and its diagnostics, in one pass. See ``kernels.token_loss``."""
    return _clipped_policy_loss(inputs, rule)


def prepare_strided_copies(sources: Sequence[Tensor], destinations: Sequence[Tensor]) -> Repack:
    """Prepare ``destination.copy_(source)`` for all pairs as one kernel launch on a GPU; call ``run()`` for each repeat.

    The answer holds addresses: prepare again where a tensor's storage has moved. See ``kernels.repack.prepare_repack``.
    """
    return prepare_repack(sources, destinations)


def rotate(x_TNK: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotary position embedding of queries or keys in one pass, forward and backward. See ``kernels.rope.rope``.

    Args:
        x_TNK: heads of T packed tokens; may be a view into a fused projection.
        cos_TR: f32, cosines of each token's angles.
        sin_TR: f32, sines.

    Returns a contiguous tensor of x's shape and dtype.
    """
    return rope(x_TNK, cos_TR, sin_TR)


def gated_silu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[..., 2F]``, gate first, in one pass that keeps the input alone. See ``kernels.swiglu``."""
    return swiglu(gate_up)


def prepare_fp8_scales(weights: Sequence[BlockScaled]) -> Repack:
    """Prepare the renewal of the scales of block-scaled FP8 from the current weights. See ``kernels.fp8_blocks``."""
    return prepare_block_scales(weights)


def prepare_fp8_copies(sources: Sequence[Tensor], destinations: Sequence[Tensor], weights: Sequence[BlockScaled]) -> Repack:
    """Prepare copies of views of weights into FP8 views, each element over its block's scale. See ``kernels.fp8_blocks``."""
    return prepare_quantise(sources, destinations, weights)


def rms_norm(x: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dim, the mean in f32. See ``kernels.rmsnorm.rmsnorm``."""
    return rmsnorm(x, weight_H, eps)
