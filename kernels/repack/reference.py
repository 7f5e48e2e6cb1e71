"""Specification of a batch of strided copies: one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def repack_reference(sources: Sequence[Tensor], destinations: Sequence[Tensor]) -> None:
    """``destination.copy_(source)`` for each pair; shapes are equal pair by pair."""
    for source, destination in zip(sources, destinations, strict=True):
        destination.copy_(source)
