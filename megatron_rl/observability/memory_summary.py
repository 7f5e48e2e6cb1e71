"""``memory_summary.json``: the peak memory of every rank and phase of an attempt, left in its run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron_rl.config.atomic_files import write_atomically

MEMORY_JSON = "memory_summary.json"

Peaks = dict[str, dict[str, float]]
"""Phase -> kind -> GiB. Kinds: ``cpu``; on a GPU also ``allocated``, ``reserved``, ``device``; ``..._end``: when it ended."""


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """Example: ``MemorySummary(139.8, {0: {"gen": {"allocated": 71.2, "reserved": 80.0, "device": 84.1, "cpu": 3.9}}})``."""

    card_gib: float | None
    """Memory of the card; None on a CPU."""
    ranks: Mapping[int, Peaks]


def write_memory_summary(run_dir: Path, summary: MemorySummary) -> None:
    """Write the file; main rank only."""
    content = {"card_gib": summary.card_gib, "ranks": {str(rank): peaks for rank, peaks in summary.ranks.items()}}
    write_atomically(run_dir / MEMORY_JSON, json.dumps(content, indent=1) + "\n")


def read_memory_summary(run_dir: Path) -> MemorySummary:
    """Read what :func:`write_memory_summary` left."""
    content = json.loads((run_dir / MEMORY_JSON).read_text())
    return MemorySummary(content["card_gib"], {int(rank): peaks for rank, peaks in content["ranks"].items()})
