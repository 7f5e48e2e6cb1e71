"""Rows to prompts: column look-up, chat template, tokenisation, and the length rule on the *rendered* ids."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_rl.config.data import DataConfig
from megatron_rl.data.sources import SourceRow
from megatron_rl.data.tokenizer import Tokenizer
from megatron_rl.types.prompts import Prompt

_log = logging.getLogger(__name__)
_MAX_LISTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompts:
    """Prompts that fit, and what it took."""

    prompts: tuple[Prompt, ...]
    """In source order."""
    num_filtered: int
    """Over-long rows that were dropped."""
    num_truncated: int
    """Over-long rows that were cut."""

    @property
    def summary(self) -> str:
        """One line for the log."""
        lengths = [len(prompt.token_ids) for prompt in self.prompts]
        return (
            f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, "
            f"{self.num_filtered} over-long dropped, {self.num_truncated} truncated"
        )


def column(row: SourceRow, key: str, config_key: str) -> Any:
    """Return a column; ``a.b`` looks inside struct ``a`` where there is no column of that very name.

    Raises:
        ValueError: The row lacks it (or holds null).
    """
    value: Any = row.values
    if key in row.values:
        return row.values[key]
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            raise ValueError(f"{row.place}: no value in column {key!r} ({config_key}); it has {', '.join(sorted(row.values))}.")
        value = value[part]
    return value


def _messages(row: SourceRow, prompt: Any, key: str) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt or not all(isinstance(item, dict) and "role" in item for item in prompt):
        raise ValueError(
            f"{row.place}: column {key!r} (data.prompt_key) must be a string or a non-empty list of messages with a role, "
            f"got {type(prompt).__name__}."
        )
    return prompt


def prompt_text(row: SourceRow, tokenizer: Tokenizer, config: DataConfig) -> str:
    """Return the text a row renders to.

    Strings and message lists go through the chat template where ``data.apply_chat_template`` and there is one; a string
    stands as it is otherwise. A ``tools`` list in the row is handed to the template.

    Raises:
        ValueError: Messages without a template, a malformed message list, or a template that refused them (names the row).
    """
    prompt = column(row, config.prompt_key, "data.prompt_key")
    if isinstance(prompt, str) and not (config.apply_chat_template and tokenizer.has_chat_template):
        return prompt
    messages = _messages(row, prompt, config.prompt_key)
    if not config.apply_chat_template:
        raise ValueError(f"{row.place}: a message list needs data.apply_chat_template=true (or a column with plain text).")
    tools = row.values.get("tools")
    try:
        return tokenizer.apply_chat_template(
            messages, tools=tools if isinstance(tools, list) else None, **config.apply_chat_template_kwargs
        )
    except ValueError as error:
        raise ValueError(f"{row.place}: {error}") from error


def _cut(token_ids: list[int], limit: int, side: str, bos_token_id: int | None) -> list[int]:
    """Cut to ``limit`` ids. ``left`` keeps the end, where the generation prompt is, and the BOS in front."""
    if side == "right":
        return token_ids[:limit]
    if token_ids[0] == bos_token_id and limit > 1:
        return [token_ids[0], *token_ids[len(token_ids) - limit + 1 :]]
    return token_ids[len(token_ids) - limit :]


def _answered(row: SourceRow, config: DataConfig) -> dict[str, Any]:
    """The row with its reference answer under ``answer``; None where it has none (a scorer that needs it must object)."""
    if config.answer_key == "answer":
        return {"answer": None, **row.values}
    return {**row.values, "answer": column(row, config.answer_key, "data.answer_key")}


def _overlong_error(overlong: Sequence[tuple[SourceRow, int]], limit: int) -> ValueError:
    listed = "; ".join(f"{row.place}: {length} tokens" for row, length in overlong[:_MAX_LISTED])
    more = f"; and {len(overlong) - _MAX_LISTED} more" if len(overlong) > _MAX_LISTED else ""
    return ValueError(
        f"{len(overlong)} prompt(s) render to more than data.max_prompt_length={limit} tokens: {listed}{more}. "
        "Raise data.max_prompt_length, or set data.filter_overlong_prompts=true or data.truncation=left|right."
    )


def render_prompts(rows: Iterable[SourceRow], tokenizer: Tokenizer, config: DataConfig) -> RenderedPrompts:
    """Render every row and apply the length rule to the ids, template and BOS included.

    Over-long prompts are dropped with ``data.filter_overlong_prompts``; else ``data.truncation`` decides.

    Raises:
        ValueError: Over-long prompts with ``truncation=error`` (names file, row, length, limit), an empty prompt, or
            nothing left after filtering.
    """
    limit = config.max_prompt_length
    prompts: list[Prompt] = []
    overlong: list[tuple[SourceRow, int]] = []
    for row in rows:
        text = prompt_text(row, tokenizer, config)
        token_ids = tokenizer.encode(text, add_special_tokens=True)
        if not token_ids:
            raise ValueError(f"{row.place}: the prompt renders to no tokens; the engine cannot continue nothing.")
        if len(token_ids) > limit:
            overlong.append((row, len(token_ids)))
            if config.filter_overlong_prompts or config.truncation == "error":
                continue
            token_ids = _cut(token_ids, limit, config.truncation, tokenizer.bos_token_id)
            text = tokenizer.decode(token_ids, skip_special_tokens=False)
        prompts.append(Prompt(uid=row.uid, token_ids=tuple(token_ids), text=text, row=_answered(row, config)))
    if overlong and not config.filter_overlong_prompts and config.truncation == "error":
        raise _overlong_error(overlong, limit)
    if not prompts:
        raise ValueError(f"no prompt is left: all {len(overlong)} are longer than data.max_prompt_length={limit} tokens.")
    num_filtered = len(overlong) if config.filter_overlong_prompts else 0
    if num_filtered:
        _log.info("%d of %d prompts dropped: longer than %d tokens", num_filtered, num_filtered + len(prompts), limit)
    return RenderedPrompts(prompts=tuple(prompts), num_filtered=num_filtered, num_truncated=len(overlong) - num_filtered)
