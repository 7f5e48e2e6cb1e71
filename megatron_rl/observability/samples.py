"""Rollouts to read: a few samples of each step in ``samples.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from megatron_rl.observability.sinks import supersede
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.prompts import PromptBatch


class Scored(Protocol):
    """Texts and rewards of B samples."""

    @property
    def responses(self) -> Sequence[str]:
        """B response texts."""

    @property
    def rewards_B(self) -> Tensor:
        """f32 rewards."""


class SampledStep(Protocol):
    """What a step leaves to read."""

    @property
    def prompts(self) -> PromptBatch:
        """The step's prompts."""

    @property
    def rollouts(self) -> RolloutBatch:
        """B samples; ``group_ids_B`` points into the prompts."""

    @property
    def scored(self) -> Scored:
        """Their texts and rewards."""

    @property
    def trained_B(self) -> Tensor:
        """bool, samples that the update saw."""


class SampleLog:
    """Appends one object a line: ``step``, ``uid``, texts, ``reward``, ``trained``, ``finish_reason``, lengths in tokens."""

    def __init__(self, path: Path | None, num_per_step: int) -> None:
        """Write to ``path``, ``num_per_step`` samples a step; None (ranks other than 0) or 0 = nothing."""
        self._path = path if num_per_step > 0 else None
        self._num_per_step = num_per_step
        self._started = False

    def write(self, step: int, result: SampledStep) -> None:
        """Record samples spread evenly over the batch, the same rows every step. Syncs: the rewards to the host."""
        if self._path is None:
            return
        if not self._started:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            supersede(self._path, first_step=step)
            self._started = True
        num_samples = len(result.scored.responses)
        count = min(self._num_per_step, num_samples)
        with self._path.open("a", encoding="utf-8") as file:
            for i in range(count):
                file.write(json.dumps(_record(step, result, i * num_samples // count), ensure_ascii=False) + "\n")


def _record(step: int, result: SampledStep, row: int) -> dict[str, str | int | float]:
    prompt = result.prompts.prompts[int(result.rollouts.group_ids_B[row])]
    return {
        "step": step,
        "uid": prompt.uid,
        "prompt": prompt.text,
        "response": result.scored.responses[row],
        "reward": float(result.scored.rewards_B[row]),
        "trained": bool(result.trained_B[row]),
        "finish_reason": result.rollouts.finish_reasons[row],
        "prompt_length": int(result.rollouts.prompt_lengths_B[row]),
        "response_length": int(result.rollouts.response_lengths_B[row]),
    }
