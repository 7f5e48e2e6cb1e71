"""Rewards of reasoning-gym tasks."""

from __future__ import annotations

import re
from typing import Any

from megatron_rl.rewards.reward import BaseRewardModel, RewardSample

_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def exact_match(prompt: str, response: str, answer: Any, row: dict[str, Any]) -> float:
    """Return 1 where the response is the answer's text, character by character (case counts), else 0.

    Raises:
        ValueError: The row has no answer; scoring it 0 would hide a wrong ``data.answer_key``.
    """
    if answer is None:
        raise ValueError("the row has no reference answer (data.answer_key)")
    return float(response == str(answer))


class TaskScore(BaseRewardModel):
    """The task's own scorer, ``score_answer``; it may give partial credit and ignore case (spell_backward does both)."""

    def __init__(self, answer_tag: bool = False) -> None:
        """Import reasoning-gym once, before workers are forked.

        Args:
            answer_tag: Score the text inside the last ``<answer>...</answer>`` (nothing there scores as no answer);
                False = the whole response, outer blanks removed.
        """
        from reasoning_gym.factory import get_score_answer_fn

        self._find_scorer = get_score_answer_fn
        self._scorers: dict[str, Any] = {}
        self._answer_tag = answer_tag

    def forward(self, sample: RewardSample) -> float:
        """Return the score, in [0, 1].

        Raises:
            ValueError: The row does not come from a reasoning-gym task.
        """
        metadata = sample.row.get("metadata")
        if not isinstance(metadata, dict) or "source_dataset" not in metadata:
            raise ValueError("the row has no reasoning-gym metadata; TaskScore needs data.reasoning_gym as source")
        task = str(metadata["source_dataset"])
        if task not in self._scorers:
            self._scorers[task] = self._find_scorer(task)
        return float(self._scorers[task](self._answer_in(sample.response), entry=sample.row))

    def _answer_in(self, response: str) -> str | None:
        if not self._answer_tag:
            return response.strip()
        tagged = _ANSWER_TAG.findall(response)
        return tagged[-1].strip() if tagged else None
