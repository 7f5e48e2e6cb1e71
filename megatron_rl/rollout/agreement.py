"""Ranks that must see the same inputs, or have produced the same outputs, prove it to each other.

A tensor-parallel engine whose ranks are given different prompts or seeds neither fails nor hangs: it returns wrong
tokens. So the ranks compare hashes, and a difference is raised on all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence


def fingerprint(parts: Mapping[str, object]) -> dict[str, str]:
    """Hash each named part; a part's ``repr`` must show all of it."""
    return {name: hashlib.blake2b(repr(part).encode(), digest_size=16).hexdigest() for name, part in parts.items()}


def require_agreement(fingerprints: Mapping[int, Mapping[str, str]], groups: Iterable[Sequence[int]], what: str) -> None:
    """Raise RuntimeError naming each rank whose fingerprint differs from that of the first rank of its group.

    Raised alike on every rank that holds the same gathered ``fingerprints``.
    """
    complaints = []
    for index, ranks in enumerate(groups):
        first = fingerprints[ranks[0]]
        for rank in ranks[1:]:
            parts = [name for name in first if fingerprints[rank][name] != first[name]]
            if parts:
                complaints.append(f"rank {rank} differs from rank {ranks[0]} in {', '.join(parts)} (engine {index})")
    if complaints:
        raise RuntimeError(f"{what} differ between the ranks of one rollout engine: {'; '.join(complaints)}")


def require_success(failures: Mapping[int, str | None]) -> None:
    """Raise RuntimeError, alike on every rank, naming each rank that reports a failure and what it was."""
    found = [f"rank {rank}: {failure}" for rank, failure in sorted(failures.items()) if failure is not None]
    if found:
        raise RuntimeError("rollout failed on " + "; ".join(found))
