"""Commands around training: conversion and generation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from megatron_rl.config.base import Section


class ConvertConfig(Section):
    """Hugging Face safetensors to Megatron distributed checkpoint or back; GGUF to either."""

    source: str | None = Field(None, description="Folder, or file.gguf, to read.")
    target: str | None = Field(None, description="Folder to write; must not exist.")
    to: Literal["megatron", "huggingface"] = Field("megatron", description="Format to write.")


class GenerateConfig(Section):
    """Sampling from a checkpoint into a file."""

    output_file: str | None = Field(None, description="JSONL to write; null = generations.jsonl in the run folder.")
    split: Literal["train", "val"] = Field("val", description="Which of the data section's prompts are answered.")
    num_prompts: int | None = Field(None, gt=0, description="First so many prompts; null = all.")
