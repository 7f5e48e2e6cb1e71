"""Noisy demonstrations of spell_backward, the supervised data of the demo's base model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from megatron_rl.config.data import ReasoningGymConfig
from megatron_rl.data.reasoning_gym_source import reasoning_gym_rows
from megatron_rl.data.sources import SourceRow

TEMPLATE_TEXT = "Spell this word backward (example: sun -> nus): "
"""What every question of the task begins with; the demo's tokenizer holds it as one token."""

_CORRECT_FRAC = 0.4
_COPIED_FRAC = 0.3


def noisy_response(word: str, rng: random.Random) -> str:
    """Return the word reversed (40 %), copied forward (30 %), or reversed with its last letter dropped (30 %)."""
    draw = rng.random()
    if draw < _CORRECT_FRAC:
        return word[::-1]
    return word if draw < _CORRECT_FRAC + _COPIED_FRAC else word[::-1][:-1]


def demonstrations(rows: list[SourceRow], num_examples: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield ``{"prompt", "response"}`` pairs: passes over the rows in new orders, each pair with its own noise."""
    rng = random.Random(f"demonstrations:{seed}")
    order = list(rows)
    for start in range(0, num_examples, len(order)):
        rng.shuffle(order)
        for row in order[: num_examples - start]:
            yield {"prompt": row.values["prompt"], "response": noisy_response(row.values["metadata"]["word"], rng)}


def write_spell_backward_demonstrations(path: str | Path, task: ReasoningGymConfig, num_examples: int, seed: int) -> Path:
    """Write noisy demonstrations of the task's *training* questions as JSONL; held-out words never occur.

    What this means for a curve: the supervised model already holds the skill, spread thin over three habits. RL then
    selects the rewarded habit and sharpens it. It does not teach reversal from nothing, and no text about the demo may
    claim so. (Correct-only data, stopped early, leaves RL too little to select from in a run this short.)

    Args:
        path: File to write; its folder is made.
        task: The same task, arguments and seed as the RL run.
        num_examples: Pairs to write; each word recurs with fresh noise.
        seed: Seed of order and noise.

    Raises:
        ValueError: The task is not spell_backward.
    """
    if task.task != "spell_backward":
        raise ValueError(f"data.reasoning_gym.task={task.task!r}: noisy demonstrations exist for spell_backward only.")
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    pairs = demonstrations(reasoning_gym_rows(task, "train"), num_examples, seed)
    file.write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs), encoding="utf-8")
    return file
