"""The rollout engine and its sampling."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from megatron_rl.config.base import Section

FP8_BLOCK = 128
"""Rows and columns that share a scale in ``fp8_per_block``."""
MIN_TEMPERATURE = 0.01
"""Lowest temperature above 0 that the engine samples at; it silently raises smaller ones to this."""
MAX_SAMPLES_PER_PROMPT = 2**16
"""Spacing of the base seeds of two prompts: sample ``i`` of a prompt draws with ``base + i``."""


class ValidationSamplingConfig(Section):
    """Sampling of the validation pass."""

    n: PositiveInt = Field(1, description="Samples per validation prompt; pass@k is reported for powers of two up to n.")
    temperature: NonNegativeFloat = Field(1.0, description="Temperature; 0 = greedy.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Nucleus mass.")
    top_k: int = Field(-1, description="Most likely tokens kept; -1 = all.")


class RolloutCorrectionConfig(Section):
    """Trainer-rollout mismatch: importance weights between the engine's and the trainer's log-probs."""

    mode: Literal["none", "token", "sequence"] = Field("none", description="Truncated importance sampling level.")
    threshold: PositiveFloat = Field(2.0, description="Weights are clamped to this (TIS).")


class RolloutConfig(Section):
    """In-process vLLM engine: every rank holds one shard, ranks form TP x DP."""

    name: Literal["vllm"] = Field("vllm", description="Engine.")
    n: PositiveInt = Field(1, description="Samples per prompt (GRPO's group size).")
    temperature: PositiveFloat = Field(1.0, description="Sampling temperature; the trainer scores at the same one.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Nucleus mass.")
    top_k: int = Field(-1, description="Most likely tokens kept; -1 = all.")
    ignore_eos: bool = Field(False, description="Generate past the end-of-sequence token (benchmarks).")
    tensor_parallel_size: PositiveInt = Field(1, description="Ranks one engine is cut over (TP).")
    data_parallel_size: PositiveInt | None = Field(None, description="Engines (DP); null = world / TP.")
    gpu_memory_utilization: float = Field(0.5, gt=0.0, lt=1.0, description="Share of the whole card the engine may use.")
    kv_cache_gib: PositiveFloat | None = Field(
        None, description="KV cache per rank, GiB; null = from gpu_memory_utilization (GPU) or 1 (CPU)."
    )
    max_num_seqs: PositiveInt = Field(256, description="Sequences decoded together by one engine.")
    max_num_batched_tokens: PositiveInt = Field(8192, description="Tokens in one engine iteration.")
    max_model_len: PositiveInt | None = Field(
        None, description="Longest prompt + response, tokens; null = max_prompt_length + max_response_length."
    )
    enforce_eager: bool = Field(False, description="No CUDA graphs and no torch.compile.")
    quantization: Literal["fp8_per_block"] | None = Field(
        None,
        description="fp8_per_block = the engine keeps linear weights in FP8 (e4m3, one scale per 128 x 128 block), quantised "
        "from the actor's in each sync; GPU only. null = the actor's dtype.",
    )
    enable_prefix_caching: bool = Field(True, description="Reuse the KV cache of shared prompt prefixes.")
    free_cache_engine: bool | None = Field(
        None,
        description="Let the engine sleep between rollouts: its cache and its own weights leave the GPU; "
        "null = where the estimate without it exceeds the card.",
    )
    seed: NonNegativeInt | None = Field(None, description="Sampling seed; null = trainer.seed.")
    correction: RolloutCorrectionConfig = Field(RolloutCorrectionConfig(), description="Mismatch correction.")
    mismatch_warn_threshold: PositiveFloat | None = Field(
        None,
        description="Warn when the mean |trainer - engine log-prob| of a step exceeds this, nats; "
        "null = 1e-4 in float32, 0.05 in bfloat16.",
    )
    val_kwargs: ValidationSamplingConfig = Field(ValidationSamplingConfig(), description="Validation sampling.")


class WeightSyncConfig(Section):
    """Moving the actor's weights into the engine."""

    budget_mib: PositiveInt = Field(256, description="Most extra memory a transfer may use per rank, MiB.")
    alias: bool = Field(
        True, description="Let the engine read the actor's own weights where both store the same bytes: no copy, no transfer."
    )
    permute: bool = Field(
        True,
        description="Lay the actor's grid and the engines' over the ranks of each node in the orders with which the engines "
        "find most of their weights at home; false = natural rank order.",
    )
    fan_out: bool = Field(
        True,
        description="Engines of a node share what comes from other nodes instead of each fetching all of it.",
    )
    transport: Literal["auto", "nccl", "ipc", "gloo"] = Field(
        "auto",
        description="How weights cross between ranks: nccl = grouped sends; ipc = the receiver copies out of the memory of "
        "another process of its node, where possible, else messages; gloo = through host memory; auto = nccl between GPUs, "
        "ipc between processes of one GPU, gloo on CPU.",
    )
    verify: bool = Field(False, description="Compare checksums of every moved tensor after each sync.")

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        return self.budget_mib * 2**20
