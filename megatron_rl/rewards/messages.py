"""What the trainer, the pool's supervisor and its workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from megatron_rl.rewards.reward import RewardSample


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """First message to the supervisor."""

    spec: str
    """``module:name`` or an absolute ``file.py:name``."""
    kwargs: dict[str, Any]
    """Keyword arguments of the reward."""
    num_workers: int
    """Worker processes."""
    timeout_s: float
    """Time limit of one sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """First answer of the supervisor: the reward was loaded, or why not."""

    problem: str | None
    """Text of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Samples for a worker, with their places in the batch."""

    indices: tuple[int, ...]
    samples: tuple[RewardSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one sample."""

    index: int
    """Place in the batch."""
    kind: Literal["scored", "error", "timeout"]
    value: float | None = None
    """What the reward returned (``scored``)."""
    detail: str = ""
    """Traceback or cause of death (``error``)."""
