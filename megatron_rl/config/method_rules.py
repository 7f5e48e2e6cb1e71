"""Rules about the method: estimator against roles, sampling against the loss, lengths, schedules."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_rl.config.optim_rules import optim_problems
from megatron_rl.config.rollout import (
    FP8_BLOCK,
    MAX_SAMPLES_PER_PROMPT,
    MIN_TEMPERATURE,
    RolloutConfig,
    ValidationSamplingConfig,
)
from megatron_rl.config.run import RunConfig
from megatron_rl.config.world import max_model_len

GROUP_ESTIMATORS = ("grpo", "dr_grpo", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline")
"""Estimators that compare the answers to one prompt with each other."""

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head dimensions for which vLLM's attention on CPU was compiled; it refuses others when it first generates."""


def algorithm_problems(config: RunConfig) -> Iterator[str]:
    """Estimator, critic and clip ranges."""
    estimator, n = config.algorithm.adv_estimator, config.rollout.n
    if estimator in GROUP_ESTIMATORS and n < 2:
        yield (
            f"rollout.n={n} with algorithm.adv_estimator={estimator}: a group of one has no other answer to compare with; "
            "use rollout.n of 2 or more"
        )
    if estimator == "gae" and not config.uses_critic:
        yield "critic.enable=false with algorithm.adv_estimator=gae: GAE needs values; use null, or another estimator"
    low = config.actor.clip_ratio_low or config.actor.clip_ratio
    if low >= 1.0:
        key = "actor.clip_ratio_low" if config.actor.clip_ratio_low else "actor.clip_ratio"
        yield f"{key}={low} must be below 1: the ratio is clipped to 1 - {low} from below"
    if config.critic.warmup_steps > 0 and not config.uses_critic:
        yield f"critic.warmup_steps={config.critic.warmup_steps} without a critic: the policy would wait for nothing"


def sampling_problems(config: RunConfig) -> Iterator[str]:
    """Lengths, and what the engine samples against what the trainer scores."""
    data, rollout, model = config.data, config.rollout, config.model
    longest = data.max_prompt_length + data.max_response_length
    if rollout.max_model_len is not None and longest > rollout.max_model_len:
        yield (
            f"data.max_prompt_length={data.max_prompt_length} + data.max_response_length={data.max_response_length} "
            f"= {longest} exceeds rollout.max_model_len={rollout.max_model_len}"
        )
    if max_model_len(config) > model.max_position_embeddings:
        key = "rollout.max_model_len" if rollout.max_model_len else "data.max_prompt_length + data.max_response_length"
        yield (
            f"{key} = {max_model_len(config)} exceeds model.max_position_embeddings={model.max_position_embeddings}, "
            f"the longest sequence {model.name} was made for"
        )
    yield from _drawing_problems("rollout", rollout)
    yield from _drawing_problems("rollout.val_kwargs", rollout.val_kwargs)
    truncated = [f"rollout.top_p={rollout.top_p}"] if rollout.top_p < 1.0 else []
    truncated += [f"rollout.top_k={rollout.top_k}"] if rollout.top_k > 0 else []
    if truncated:
        yield (
            f"{' and '.join(truncated)}: training samples must come from the whole distribution, because the trainer scores "
            "them under it and the importance ratio would compare unlike things; use top_p=1, top_k=-1 "
            "(rollout.val_kwargs may truncate)"
        )
    if rollout.max_num_batched_tokens < rollout.max_num_seqs:
        yield (
            f"rollout.max_num_batched_tokens={rollout.max_num_batched_tokens} is below rollout.max_num_seqs="
            f"{rollout.max_num_seqs}: every sequence decodes one token per iteration"
        )


def _drawing_problems(section: str, drawing: RolloutConfig | ValidationSamplingConfig) -> Iterator[str]:
    """What the engine would refuse of its own parameters, or silently change."""
    if drawing.top_k == 0 or drawing.top_k < -1:
        yield f"{section}.top_k={drawing.top_k}: use -1 for all tokens, or 1 and more"
    if 0.0 < drawing.temperature < MIN_TEMPERATURE:
        yield f"{section}.temperature={drawing.temperature}: the engine would raise it to {MIN_TEMPERATURE}; use that or more"
    if drawing.temperature == 0.0 and drawing.n > 1:
        yield f"{section}.n={drawing.n} with {section}.temperature=0: greedy samples of a prompt are all the same; use n=1"
    if drawing.n > MAX_SAMPLES_PER_PROMPT:
        yield f"{section}.n={drawing.n}: a prompt has seeds for {MAX_SAMPLES_PER_PROMPT} samples; use at most that many"


def device_problems(config: RunConfig, num_gpus: int) -> Iterator[str]:
    """What the device would refuse only once model and engine are built."""
    device, head_dim = config.trainer.device, config.model.kv_channels
    on_cpu = device == "cpu" or (device == "auto" and num_gpus == 0)
    if on_cpu and config.model.mla is None and head_dim not in CPU_HEAD_DIMS:
        key = "model.head_dim" if config.model.head_dim else "model.hidden_size / model.num_attention_heads"
        yield (
            f"{key}={head_dim}: on CPU the rollout engine has attention for head dimensions "
            f"{', '.join(map(str, CPU_HEAD_DIMS))} only; set model.head_dim to one of them, or use a GPU"
        )
    if on_cpu and config.model.transformer_impl == "transformer_engine":
        yield "model.transformer_impl=transformer_engine computes on GPUs only; use auto or local"
    transport = config.weight_sync.transport
    if on_cpu and transport in ("nccl", "ipc"):
        yield f"weight_sync.transport={transport} needs GPUs; use auto"
    if config.rollout.quantization is not None and transport == "gloo":
        yield "weight_sync.transport=gloo does not carry the weights of rollout.quantization from a GPU; use auto"
    if config.rollout.quantization is not None:
        yield from _quantisation_problems(config, on_cpu)


def _quantisation_problems(config: RunConfig, on_cpu: bool) -> Iterator[str]:
    key, model = f"rollout.quantization={config.rollout.quantization}", config.model
    if on_cpu or config.trainer.dtype == "float32":
        yield f"{key} needs a GPU and trainer.dtype=bfloat16; use null"
    if model.moe is not None or model.mla is not None:
        yield f"{key}: experts and latent attention stay unquantised so far; use null with model={model.name}"
    degrees = {
        "actor.parallel.tensor": config.actor.parallel.tensor,
        "rollout.tensor_parallel_size": config.rollout.tensor_parallel_size,
    }
    for degree_key, degree in degrees.items():
        rows = {
            "num_attention_heads * head_dim": model.num_attention_heads * model.kv_channels / degree,
            "num_key_value_heads * head_dim": max(model.num_key_value_heads / degree, 1) * model.kv_channels,
            "intermediate_size": model.intermediate_size / degree,
        }
        for what, extent in rows.items():
            if extent % FP8_BLOCK:
                yield (
                    f"{key}: with {degree_key}={degree} a rank holds {extent:g} rows of {what}, no whole blocks of "
                    f"{FP8_BLOCK}; use another degree, or null"
                )


def schedule_problems(config: RunConfig) -> Iterator[str]:
    """Optimizer schedules, saving, validating, resuming."""
    yield from optim_problems("actor.optim", config.actor.optim, config.trainer.dtype)
    if config.uses_critic:
        yield from optim_problems("critic.optim", config.critic.optim, config.trainer.dtype)
    trainer = config.trainer
    for key, every in (("trainer.save_freq", trainer.save_freq), ("trainer.test_freq", trainer.test_freq)):
        if every == 0 or every < -1:
            yield f"{key}={every}: use -1 for never, or a number of steps"
    if trainer.resume_mode == "path" and trainer.resume_path is None:
        yield "trainer.resume_mode=path needs trainer.resume_path"
    if trainer.resume_mode != "path" and trainer.resume_path is not None:
        yield f"trainer.resume_path is ignored with trainer.resume_mode={trainer.resume_mode}; use resume_mode=path"
