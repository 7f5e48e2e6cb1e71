"""The only door to ``kernels``: operations in the words of the trainer.

Shape suffixes: N positions, V vocabulary rows of this rank, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.distributed import ProcessGroup

from kernels.linear_logprob import linear_logprob
from kernels.repack import Repack, prepare_repack


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


def prepare_strided_copies(sources: Sequence[Tensor], destinations: Sequence[Tensor]) -> Repack:
    """Prepare ``destination.copy_(source)`` for all pairs as one kernel launch on a GPU; call ``run()`` for each repeat.

    The answer holds addresses: prepare again where a tensor's storage has moved. See ``kernels.repack.prepare_repack``.
    """
    return prepare_repack(sources, destinations)
