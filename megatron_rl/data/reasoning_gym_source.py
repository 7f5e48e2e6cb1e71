"""reasoning-gym tasks as prompt source: procedural questions, split by question."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

from megatron_rl.config.data import ReasoningGymConfig
from megatron_rl.data.sources import SourceRow

Split = Literal["train", "val"]

_HELD_OUT_ONE_IN = 8
_MAX_DRAWS_PER_ROW = 64
_MIN_DRAWS = 4096


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def split_of(question: str) -> Split:
    """Return the split a question belongs to, a property of its text alone (case and spacing ignored).

    One question in eight is held out, whatever the seed and the sizes: no seed trains on what another one is tested on.
    Item ``i`` of a reasoning-gym data set uses generator seed ``seed + i``, so nearby seeds share almost all items and
    could never serve as a split.
    """
    return "val" if _digest(" ".join(question.casefold().split())) % _HELD_OUT_ONE_IN == 0 else "train"


def _items(config: ReasoningGymConfig, num_draws: int) -> Iterator[dict[str, Any]]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if config.task not in DATASETS:
        raise ValueError(
            f"data.reasoning_gym.task={config.task!r} is no reasoning-gym task; known: {', '.join(sorted(DATASETS))}"
        )
    first = _digest(f"{config.task}:{config.seed}") % 2**31  # far apart for neighbouring seeds
    try:
        dataset = reasoning_gym.create_dataset(config.task, seed=first, size=num_draws, **config.task_kwargs)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(
            f"data.reasoning_gym.task_kwargs={config.task_kwargs}: {config.task} refuses them ({error})"
        ) from error
    for index in range(num_draws):
        yield dataset[index]


def reasoning_gym_rows(config: ReasoningGymConfig, split: Split, max_rows: int | None = None) -> list[SourceRow]:
    """Return the questions of one split: each once, or as often as the task draws it (``config.repeat``).

    What that means for a curve: tasks draw small problems as often as large ones, although there are far fewer of them. Half
    of the draws of chain_sum with one or two digits have one digit, but only 2 % of 8,192 different questions.

    Each row holds ``prompt`` (question + suffix), ``question``, ``answer`` and the task's ``metadata``, which its scorer
    needs. The same configuration gives the same rows in the same order.

    Args:
        config: Task, sizes and seed.
        split: ``train`` or ``val``; they share no question (see :func:`split_of`).
        max_rows: Return only so many rows (for a quick check); None = the configured size.

    Raises:
        ValueError: Unknown task, refused arguments, or a task with too few different questions.
    """
    size = config.train_size if split == "train" else config.val_size
    wanted = size if max_rows is None else min(size, max_rows)
    num_draws = max(_MIN_DRAWS, _MAX_DRAWS_PER_ROW * wanted)
    rows: list[SourceRow] = []
    seen: set[str] = set()
    for index, item in enumerate(_items(config, num_draws)):
        question = str(item["question"])
        if split_of(question) != split or (question in seen and not config.repeat):
            continue
        seen.add(question)
        values = {**item, "prompt": question + config.prompt_suffix}
        rows.append(SourceRow(source=config.task, index=index, values=values))
        if len(rows) == wanted:
            return rows
    kind = split if config.repeat else f"different {split}"
    raise ValueError(
        f"data.reasoning_gym.{split}_size={size}: {config.task} gave only {len(rows)} {kind} questions in "
        f"{num_draws} draws. Ask for fewer, widen data.reasoning_gym.task_kwargs, or set data.reasoning_gym.repeat=true."
    )
