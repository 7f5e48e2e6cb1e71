"""One line of a memory table, and the table of one phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["rollout", "switch-over", "scoring", "update critic", "update actor"]
PHASES: tuple[Phase, ...] = ("rollout", "switch-over", "scoring", "update critic", "update actor")


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Example: ``MemoryPart("actor", "weights", 3_087_428_608)``."""

    role: str
    kind: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Everything the fullest rank holds at the worst moment of one phase."""

    phase: Phase
    parts: tuple[MemoryPart, ...]

    @property
    def total_bytes(self) -> int:
        """All parts."""
        return sum(part.size_bytes for part in self.parts)
