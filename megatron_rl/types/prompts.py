"""What one step generates from. Free of torch, so that a data shard can be rendered on a login node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One rendered prompt. Example: ``Prompt(uid="train:7", token_ids=(5, 9), row={"answer": "4"}, text="2+2=")``."""

    uid: str
    """Unique per row of the source (never derived from the tokens: equal prompts stay two groups)."""
    token_ids: tuple[int, ...]
    """Rendered prompt ids, as the engine gets them."""
    text: str
    """Rendered prompt text, for rewards and sample logs."""
    row: dict[str, Any]
    """The source row, for rewards; ``row["answer"]`` is the reference answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBatch:
    """P prompts of one step, the same on every rank."""

    prompts: tuple[Prompt, ...]
    """P rendered prompts."""
    epoch: int
    """Pass over the data the batch came from."""
