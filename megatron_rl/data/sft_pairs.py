"""Prompt/response pairs for supervised fine-tuning: loss on the response and its EOS only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_rl.config.data import DataConfig
from megatron_rl.config.training import SftConfig
from megatron_rl.data.rendering import column, render_prompts
from megatron_rl.data.sources import SourceRow, read_rows
from megatron_rl.data.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class SftExample:
    """One training sequence. Example: ``SftExample(uid="a.jsonl:0", token_ids=(7, 8, 9, 1), prompt_length=2)``."""

    uid: str
    """Row id."""
    token_ids: tuple[int, ...]
    """Prompt ids, response ids, EOS."""
    prompt_length: int
    """Leading ids without loss."""

    @property
    def response_length(self) -> int:
        """Ids with loss, the EOS included."""
        return len(self.token_ids) - self.prompt_length


def _response_ids(row: SourceRow, tokenizer: Tokenizer, response_key: str) -> tuple[int, ...]:
    response = column(row, response_key, "sft.response_key")
    if not isinstance(response, str):
        raise ValueError(
            f"{row.place}: column {response_key!r} (sft.response_key) must be text, got {type(response).__name__}."
        )
    return (*tokenizer.encode(response, add_special_tokens=False), tokenizer.eos_token_ids[0])


def make_sft_examples(
    rows: Sequence[SourceRow], tokenizer: Tokenizer, data: DataConfig, response_key: str
) -> tuple[SftExample, ...]:
    """Tokenise prompt and response *apart*, so that the boundary is the one generation will see.

    The prompt obeys the same rule as in RL. An over-long response (EOS included) is dropped with
    ``data.filter_overlong_prompts``, cut on the right (losing its EOS) with ``data.truncation=left|right``, else an error.

    Raises:
        ValueError: Over-long or malformed rows (named), or nothing left.
    """
    by_uid = {row.uid: row for row in rows}
    limit = data.max_response_length
    examples: list[SftExample] = []
    for prompt in render_prompts(rows, tokenizer, data).prompts:
        row = by_uid[prompt.uid]
        response_ids = _response_ids(row, tokenizer, response_key)
        if len(response_ids) > limit:
            if data.filter_overlong_prompts:
                continue
            if data.truncation == "error":
                raise ValueError(
                    f"{row.place}: the response has {len(response_ids)} tokens with its EOS, more than "
                    f"data.max_response_length={limit}. Raise it, or set data.filter_overlong_prompts=true or data.truncation."
                )
            response_ids = response_ids[:limit]
        ids = (*prompt.token_ids, *response_ids)
        examples.append(SftExample(uid=prompt.uid, token_ids=ids, prompt_length=len(prompt.token_ids)))
    if not examples:
        raise ValueError(f"no pair is left: every response is longer than data.max_response_length={limit} tokens.")
    return tuple(examples)


def load_sft_examples(sft: SftConfig, data: DataConfig, tokenizer: Tokenizer) -> tuple[SftExample, ...]:
    """Read and tokenise ``sft.train_files``.

    Raises:
        ValueError: No files, or see :func:`make_sft_examples`.
    """
    if not sft.train_files:
        raise ValueError("sft.train_files is empty: name JSONL or Parquet files with prompts and responses.")
    return make_sft_examples(read_rows(sft.train_files, "sft.train_files"), tokenizer, data, sft.response_key)
