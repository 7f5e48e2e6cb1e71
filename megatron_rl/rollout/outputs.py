"""What an engine returns, and its compact form for travel between ranks.

Shape suffixes: C completions, T tokens of all of them end to end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

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
        return cls(
            np.array([token for c in completions for token in c.token_ids], dtype=np.int64),
            np.array([logprob for c in completions for logprob in c.logprobs], dtype=np.float32),
            np.array([len(c.token_ids) for c in completions], dtype=np.int64),
            np.array([_REASONS.index(c.finish_reason) for c in completions], dtype=np.int8),
        )

    def unpack(self) -> list[Completion]:
        """Inverse of :meth:`pack`."""
        stops = np.cumsum(self.lengths_C)
        return [
            Completion(
                token_ids=tuple(self.token_ids_T[stop - length : stop].tolist()),
                logprobs=tuple(self.logprobs_T[stop - length : stop].tolist()),
                finish_reason=_REASONS[reason],
            )
            for stop, length, reason in zip(stops.tolist(), self.lengths_C.tolist(), self.reasons_C.tolist(), strict=True)
        ]

    def digest(self) -> bytes:
        """Hash of ids, lengths and reasons.

        Log-probs stay out: two ranks of one engine may differ in the last bit of a value each computes for itself,
        and only a difference in what was sampled corrupts training.
        """
        hasher = hashlib.blake2b(digest_size=16)
        for array in (self.lengths_C, self.reasons_C, self.token_ids_T):
            hasher.update(array.tobytes())
        return hasher.digest()
