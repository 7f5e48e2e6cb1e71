"""The ``generate`` and ``evaluate`` tasks: the rollout engine alone, filled straight from a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from megatron_rl.config.errors import ConfigError
from megatron_rl.data.prompts import load_prompts, tokenizer_of
from megatron_rl.data.stream import validation_batches
from megatron_rl.data.tokenizer import Tokenizer
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.rewards.sandbox import RewardPool
from megatron_rl.training.job import Job
from megatron_rl.training.rollout_assembly import RolloutSide, build_rollout_side
from megatron_rl.training.scoring import RewardScorer
from megatron_rl.training.validation import Validator
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.metrics import to_floats
from megatron_rl.types.prompts import Prompt, PromptBatch
from megatron_rl.weights.hf_checkpoint import load_hf_checkpoint
from megatron_rl.weights.names import logical_tensors


def generate(job: Job) -> int:
    """Sample answers to the data's prompts into ``generate.output_file``; returns the exit code. Collectives: all ranks."""
    side, prompts = _engine_with_weights(job), _prompts(job)
    rollouts, _ = side.generator.generate(PromptBatch(prompts=prompts, epoch=0), side.sampling, step=0, policy_version=0)
    if job.is_main:
        target = Path(job.config.generate.output_file or job.run_dir / "generations.jsonl")
        _write_generations(target, prompts, rollouts, tokenizer_of(job.config.model))
        job.say(f"{len(rollouts.finish_reasons)} responses to {len(prompts)} prompts: {target}")
    side.engine.shutdown()
    return 0


def evaluate(job: Job) -> int:
    """Score sampled answers and print accuracy and pass@k, also as ``evaluation.json``. Collectives: all ranks."""
    side, prompts = _engine_with_weights(job), _prompts(job)
    with RewardPool(job.config.reward) as pool:
        validator = Validator(
            batches=validation_batches(prompts, job.config.data.val_batch_size),
            generator=side.generator,
            sampling=side.validation_sampling,
            scorer=RewardScorer(pool, tokenizer_of(job.config.model), job.host_group),
        )
        metrics = to_floats(validator.run(policy_version=0))
    if job.is_main:
        text = json.dumps(metrics, indent=2)
        (job.run_dir / "evaluation.json").write_text(text + "\n")
        job.say(text)
    side.engine.shutdown()
    return 0


def _write_generations(target: Path, prompts: Sequence[Prompt], rollouts: RolloutBatch, tokenizer: Tokenizer) -> None:
    """One JSON object a response."""
    with target.open("w", encoding="utf-8") as file:
        for b, group in enumerate(rollouts.group_ids_B.tolist()):
            start, length = int(rollouts.prompt_lengths_B[b]), int(rollouts.response_lengths_B[b])
            record = {
                "uid": prompts[group].uid,
                "prompt": prompts[group].text,
                "response": tokenizer.decode(rollouts.tokens_BS[b, start : start + length].tolist()),
                "finish_reason": rollouts.finish_reasons[b],
                "response_length": length,
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _prompts(job: Job) -> tuple[Prompt, ...]:
    settings = job.config.generate
    prompts = load_prompts(job.config.data, tokenizer_of(job.config.model), settings.split).prompts
    if not prompts:
        raise ConfigError([f"generate.split={settings.split}: the data section has no {settings.split} prompts"])
    return prompts[: settings.num_prompts]


def _engine_with_weights(job: Job) -> RolloutSide:
    """An engine that holds ``model.path`` as policy version 0; each rank reads only the slices of its shard."""
    model = job.config.model
    if model.path is None:
        raise ConfigError(["model.path is null: name the Hugging Face folder to sample from"])
    side = build_rollout_side(job, tokenizer_of(model))
    fragments = vllm_rules_layout(model, job.rollout_layout)(job.rank)
    side.engine.begin_weight_update()
    load_hf_checkpoint(Path(model.path), logical_tensors(model), fragments, side.engine.parameters())
    side.engine.finish_weight_update(0)
    return side
