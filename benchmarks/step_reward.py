"""A reward that costs nothing and differs between the samples of a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32


def score(prompt: str, response: str, answer: object, row: Mapping[str, object]) -> float:
    """1 for one half of all texts, 0 for the other."""
    return float(crc32(response.encode()) & 1)
