"""What the trainer, the pool's supervisor and its workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


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


class Task(NamedTuple):
    """Samples for a worker. They stay pickled on their way through the supervisor, which has no use for their content."""

    indices: tuple[int, ...]
    """Places in the batch."""
    samples: tuple[bytes, ...]
    """Pickled ``RewardSample`` each."""


class Outcome(NamedTuple):
    """What became of one sample. Example: ``Outcome(position=3, kind="scored", value=1.0)``."""

    position: int
    """Place in the batch."""
    kind: Literal["scored", "error", "timeout"]
    value: float | None = None
    """What the reward returned (``scored``)."""
    detail: str = ""
    """Exception and traceback, or cause of death (``error``)."""
