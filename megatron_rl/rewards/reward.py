"""What a reward is: a function of one response, or a subclass of :class:`BaseRewardModel`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from megatron_rl.types.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSample:
    """One response to score. Example: ``RewardSample(uid="t:7/0", prompt="2+2=", response="4", row={"answer": "4"})``."""

    uid: str
    """Names the sample in messages: the prompt's uid and which of its responses."""
    prompt: str
    """Rendered prompt text."""
    response: str
    """Response text without special tokens."""
    row: dict[str, Any]
    """The whole source row; ``row["answer"]`` is the reference answer."""

    @property
    def answer(self) -> Any:
        """The reference answer, None where the row has none."""
        return self.row.get("answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """Scores of a batch, in the order of the samples."""

    rewards: list[float]
    """Always finite; 0 where masked out."""
    valid: list[bool]
    """False: the sample must not count, neither in the loss nor in its group's baseline."""
    metrics: Metrics
    """``reward/errors``, ``reward/timeouts`` and ``reward/masked``, in samples."""


class RewardError(RuntimeError):
    """Scoring failed and the configuration says to stop; names the sample and what its reward raised."""


class BaseRewardModel(ABC):
    """A reward with state. Name a subclass as ``reward.function``; ``reward.function_kwargs`` go to ``__init__``.

    Example:
        class LengthReward(BaseRewardModel):
            def __init__(self, target: int) -> None:
                self.target = target

            def forward(self, sample: RewardSample) -> float:
                return -abs(len(sample.response) - self.target)
    """

    def setup(self) -> None:
        """Prepare one worker process: open files and connections here. ``__init__`` runs once, before workers are forked."""
        return

    @abstractmethod
    def forward(self, sample: RewardSample) -> float | None:
        """Return the reward of one sample. None, NaN and infinities follow ``reward.on_invalid``."""
