"""What an engine returns, and its compact form for travel between ranks.

Shape suffixes: C completions, T tokens of all of them end to end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from megatron_rl.types.batches import FinishReason

_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One response. Example: ``Completion(token_ids=(7, 2), logprobs=(-0.5, -0.1), finish_reason="stop")``."""

    token_ids: tuple[int, ...]
    """The engine's own ids, the final EOS included; empty where aborted."""
    logprobs: tuple[float, ...]
    """Log-prob of each id under the distribution it was drawn from (f32 values)."""
    finish_reason: FinishReason
    """``length`` = budget used up without EOS."""

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs), (len(self.token_ids), len(self.logprobs))


@dataclass(frozen=True, slots=True, eq=False)
class PackedCompletions:
    """C completions in four arrays."""

    token_ids_T: NDArray[np.int64]
    logprobs_T: NDArray[np.float32]
    lengths_C: NDArray[np.int64]
    reasons_C: NDArray[np.int8]

    @classmethod
    def pack(cls, completions: Sequence[Completion]) -> PackedCompletions:
        """Lay completions end to end."""
        lengths_C = np.array([len(c.token_ids) for c in completions], dtype=np.int64)
        total = int(lengths_C.sum())
        return cls(
            np.fromiter(chain.from_iterable(c.token_ids for c in completions), np.int64, total),
            np.fromiter(chain.from_iterable(c.logprobs for c in completions), np.float32, total),
            lengths_C,
            np.array([_REASONS.index(c.finish_reason) for c in completions], dtype=np.int8),
        )

    @classmethod
    def joined(cls, parts: Sequence[PackedCompletions], order: Sequence[int]) -> PackedCompletions:
        """All completions of the parts, counted through; number ``order[i]`` of them becomes number i."""
        lengths_C = np.concatenate([part.lengths_C for part in parts])
        stops_C = np.cumsum(lengths_C)
        taken_T = [np.arange(stops_C[i] - lengths_C[i], stops_C[i]) for i in order]
        index_T = np.concatenate(taken_T) if taken_T else np.zeros(0, dtype=np.int64)
        chosen_C = np.asarray(order, dtype=np.int64)
        return cls(
            np.concatenate([part.token_ids_T for part in parts])[index_T],
            np.concatenate([part.logprobs_T for part in parts])[index_T],
            lengths_C[chosen_C],
            np.concatenate([part.reasons_C for part in parts])[chosen_C],
        )

    @property
    def finish_reasons(self) -> tuple[FinishReason, ...]:
        """Of each completion."""
        return tuple(_REASONS[reason] for reason in self.reasons_C.tolist())

    def digest(self) -> bytes:
        """Hash of ids, lengths and reasons.

        Log-probs stay out: two ranks of one engine may differ in the last bit of a value each computes for itself,
        and only a difference in what was sampled corrupts training.
        """
        hasher = hashlib.blake2b(digest_size=16)
        for array in (self.lengths_C, self.reasons_C, self.token_ids_T):
            hasher.update(array.tobytes())
        return hasher.digest()
