"""Prompts and rewards."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from megatron_rl.config.base import Section

PROMPT_SUFFIXES = (".jsonl", ".ndjson", ".parquet")
"""Endings of prompt files; each names its format."""


class ReasoningGymConfig(Section):
    """A reasoning-gym task as prompt source: procedural, so it needs no download."""

    task: str = Field(description="Name of the task, for example spell_backward or chain_sum.")
    task_kwargs: dict[str, Any] = Field({}, description="Arguments of the task's generator.")
    train_size: PositiveInt = Field(4096, description="Training questions.")
    val_size: PositiveInt = Field(256, description="Held-out questions, none of them in training.")
    repeat: bool = Field(
        False, description="true = the task's own distribution, where easy questions recur; false = each question once."
    )
    seed: NonNegativeInt = Field(0, description="Seed of the question pool and of its split.")
    prompt_suffix: str = Field("\n", description="Text appended to each question.")


class DataConfig(Section):
    """Where prompts come from and how they are rendered and batched."""

    train_files: list[str] = Field([], description="JSONL or Parquet prompt files; empty = use data.reasoning_gym.")
    val_files: list[str] = Field([], description="JSONL or Parquet validation files.")
    reasoning_gym: ReasoningGymConfig | None = Field(None, description="Procedural task; null = use the files.")
    prompt_key: str = Field("prompt", description="Column with the prompt: a string or a list of chat messages.")
    answer_key: str = Field("answer", description="Column with the reference answer handed to the reward.")
    train_batch_size: PositiveInt = Field(1024, description="Prompts per step (samples per step = this * rollout.n).")
    gen_batch_size: PositiveInt | None = Field(
        None, description="Prompts sampled at once with algorithm.filter_groups.enable=true; null = train_batch_size."
    )
    val_batch_size: PositiveInt | None = Field(None, description="Validation prompts per engine call; null = all.")
    max_prompt_length: PositiveInt = Field(512, description="Longest rendered prompt, tokens.")
    max_response_length: PositiveInt = Field(512, description="Longest response, tokens.")
    truncation: Literal["error", "left", "right"] = Field(
        "error", description="Over-long rendered prompts: stop with file and row, or cut that side's tokens."
    )
    filter_overlong_prompts: bool = Field(False, description="Drop over-long prompts (counted) before truncation applies.")
    apply_chat_template: bool = Field(True, description="Render messages (and text) with the chat template if there is one.")
    apply_chat_template_kwargs: dict[str, Any] = Field({}, description="Extra variables of the chat template.")
    shuffle: bool = Field(True, description="A new order of the rows each epoch.")
    seed: NonNegativeInt | None = Field(None, description="Seed of the order; null = trainer.seed.")

    @property
    def prompts_per_gen_batch(self) -> int:
        """Prompts that are sampled at once in training."""
        return self.gen_batch_size or self.train_batch_size

    @property
    def gen_batch_key(self) -> str:
        """Dotted key that ``prompts_per_gen_batch`` comes from, for messages."""
        return "data.gen_batch_size" if self.gen_batch_size else "data.train_batch_size"


class RewardConfig(Section):
    """How a response is scored."""

    function: str = Field(
        "megatron_rl.rewards.reasoning_tasks:exact_match",
        description="Importable module:function or file.py:function taking (prompt, response, answer, row) -> float.",
    )
    function_kwargs: dict[str, Any] = Field({}, description="Extra keyword arguments of the function.")
    num_workers: PositiveInt = Field(2, description="Worker processes per node.")
    timeout_s: PositiveFloat = Field(10.0, description="Time limit for one sample, seconds.")
    timeout_reward: float = Field(0.0, description="Reward of a sample whose scoring timed out.")
    on_invalid: Literal["error", "mask", "zero"] = Field(
        "error", description="None, NaN or infinite reward, or an exception: stop, mask the sample out, or score 0."
    )
    max_error_frac: float = Field(
        0.5, ge=0.0, le=1.0, description="mask or zero: stop where more than this share of a scored batch failed."
    )
