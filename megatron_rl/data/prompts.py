"""The prompts of a run, from its configuration: every rank loads all of them, before any model is built.

Rendering happens once, at start: an over-long or malformed row must be named before hours are spent, and the same ids
then serve every epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from megatron_rl.config.data import DataConfig
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.data.reasoning_gym_source import Split, reasoning_gym_rows
from megatron_rl.data.rendering import RenderedPrompts, render_prompts
from megatron_rl.data.sources import SourceRow, num_rows, read_rows
from megatron_rl.data.stream import require_one_batch
from megatron_rl.data.tokenizer import Tokenizer, load_tokenizer

_SHARD_ROWS = 64


def tokenizer_of(model: ModelConfig) -> Tokenizer:
    """Load the tokenizer a model section names.

    Raises:
        ValueError: None is named, it cannot be read, or it has ids the embedding has no row for.
    """
    if model.tokenizer is None:
        raise ValueError("model.tokenizer_path and model.path are both null: prompts cannot be rendered without a tokenizer.")
    tokenizer = load_tokenizer(model.tokenizer, model_path=model.path, chat_template=model.chat_template)
    largest = max(tokenizer.vocab_size - 1, *tokenizer.eos_token_ids)
    if largest >= model.vocab_size:
        raise ValueError(
            f"model.vocab_size={model.vocab_size}: tokenizer {model.tokenizer} has id {largest}; "
            f"the embedding needs at least {largest + 1} rows."
        )
    return tokenizer


def source_rows(data: DataConfig, split: Split, max_rows: int | None = None) -> list[SourceRow]:
    """Read the rows of one split; no rows for validation where none are configured.

    Args:
        data: The data section.
        split: ``train`` or ``val``.
        max_rows: Only so many rows per file or task; None = all.

    Raises:
        ValueError: No source or two sources of training prompts, or an unreadable one.
    """
    files = data.train_files if split == "train" else data.val_files
    if files:
        if split == "train" and data.reasoning_gym is not None:
            raise ValueError("data.train_files and data.reasoning_gym are both set; choose one source of training prompts.")
        return read_rows(files, f"data.{split}_files", max_rows)
    if data.reasoning_gym is not None:
        return reasoning_gym_rows(data.reasoning_gym, split, max_rows)
    if split == "train":
        raise ValueError("data.train_files is empty and data.reasoning_gym is null: there are no training prompts.")
    return []


def load_prompts(data: DataConfig, tokenizer: Tokenizer, split: Split, max_rows: int | None = None) -> RenderedPrompts:
    """Read and render one split; validation may be empty.

    Raises:
        ValueError: See :func:`source_rows` and :func:`megatron_rl.data.rendering.render_prompts`.
    """
    rows = source_rows(data, split, max_rows)
    if not rows:
        return RenderedPrompts(prompts=(), num_filtered=0, num_truncated=0)
    return render_prompts(rows, tokenizer, data)


def _num_training_rows(data: DataConfig) -> int:
    if data.train_files:
        return sum(num_rows(file) for file in data.train_files)
    return 0 if data.reasoning_gym is None else data.reasoning_gym.train_size


def _attempt[T](problems: list[str], action: Callable[[], T]) -> T | None:
    """Return what ``action`` returns, or note what it objects to."""
    try:
        return action()
    except ValueError as error:
        problems.append(str(error))
        return None


def render_one_shard(config: RunConfig, max_rows: int = _SHARD_ROWS) -> RenderedPrompts:
    """Render the first training and validation rows of each source, for ``megatron-rl check``: no torch, no model.

    Args:
        config: The run.
        max_rows: Rows per file or task.

    Returns:
        The rendered training rows.

    Raises:
        ValueError: Whatever a full run would meet in the tokenizer and in those rows, or too few training rows for one
            batch; every problem on a line of its own.
    """
    data, problems = config.data, list[str]()
    tokenizer = _attempt(problems, lambda: tokenizer_of(config.model))
    val_rows = _attempt(problems, lambda: source_rows(data, "val", max_rows))
    train_rows = _attempt(problems, lambda: source_rows(data, "train", max_rows))
    shard = None
    if train_rows:
        _attempt(problems, lambda: require_one_batch(_num_training_rows(data), data.prompts_per_gen_batch, data.gen_batch_key))
    if tokenizer is not None and val_rows:
        _attempt(problems, lambda: render_prompts(val_rows, tokenizer, data))
    if tokenizer is not None and train_rows:
        shard = _attempt(problems, lambda: render_prompts(train_rows, tokenizer, data))
    if problems or shard is None:
        raise ValueError("\n".join(problems))
    return shard
