"""The same task, model, data, batch, sampling and optimizer under TRL's GRPOTrainer: the other side of the comparison.

    python examples/smollm2_arithmetic/run_trl.py MODEL_FOLDER OUT.json [key=value ...]

Overrides are those of ``megatron-rl train``, so both sides read one configuration. TRL runs as it learns best: f32 weights
under bf16 autocast, vLLM in the same process, no gradient checkpointing, no second forward pass for a vLLM correction.
Needs ``trl``, ``datasets`` and ``accelerate``; on a CPU, transformers generates in vLLM's place.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer
from trl.extras.profiling import ProfilingContext

from megatron_rl.cli.compose import compose_run
from megatron_rl.config.run import RunConfig
from megatron_rl.data.prompts import source_rows
from megatron_rl.data.reasoning_gym_source import Split
from megatron_rl.rewards.math_answer import last_number_match

_GPU_SHARE = float(os.environ.get("TRL_VLLM_GPU_SHARE", "0.1"))
_SAMPLES_PER_FORWARD = int(os.environ.get("TRL_SAMPLES_PER_FORWARD", "512"))
_LIGER = os.environ.get("TRL_LIGER", "0") == "1"
"""What only TRL knows: the engine's share of the GPU, samples per forward pass, and whether Liger computes the loss."""
_PHASES = {"vLLM.generate": "gen", "transformers.generate": "gen", "sync_weights": "update_weights", "score": "reward"}
"""TRL's own names -> ours; what is left of a step is scoring and the update."""


@dataclass
class Record:
    """What a run leaves behind; ``wall_s`` counts training alone, validation and start-up left out."""

    settings: dict[str, Any]
    steps: list[dict[str, float]] = field(default_factory=list)
    validations: list[dict[str, float]] = field(default_factory=list)
    peak_allocated_gib: float = 0.0

    def write(self, path: Path) -> None:
        """Store as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(self), indent=1) + "\n")


def questions(config: RunConfig, split: Split) -> Dataset:
    """Rows as one-message conversations, which TRL renders with the tokenizer's own chat template."""
    rows = source_rows(config.data, split)
    messages = [[{"role": "user", "content": row.values["prompt"]}] for row in rows]
    return Dataset.from_dict({"prompt": messages, "answer": [str(row.values["answer"]) for row in rows]})


def score(completions: list[list[dict[str, str]]], answer: list[str], **_: object) -> list[float]:
    """The reward of ``experiment=smollm2_arithmetic``."""
    return [last_number_match("", completion[0]["content"], a, {}) for completion, a in zip(completions, answer, strict=True)]


def trl_config(config: RunConfig, folder: Path) -> GRPOConfig:
    """Our settings in TRL's words."""
    samples = config.data.train_batch_size * config.rollout.n
    per_forward = min(_SAMPLES_PER_FORWARD, samples)
    optim, on_gpu = config.actor.optim, torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=per_forward,
        gradient_accumulation_steps=samples // per_forward,
        num_generations=config.rollout.n,
        max_completion_length=config.data.max_response_length,
        temperature=config.rollout.temperature,
        learning_rate=optim.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=optim.lr_warmup_steps,
        weight_decay=optim.weight_decay,
        adam_beta1=optim.betas[0],
        adam_beta2=optim.betas[1],
        adam_epsilon=optim.eps,
        max_grad_norm=optim.clip_grad,
        max_steps=config.trainer.total_training_steps or -1,
        beta=0.0,
        epsilon=config.actor.clip_ratio,
        loss_type="dapo",
        use_liger_kernel=_LIGER,
        scale_rewards="group",
        model_init_kwargs={"dtype": "float32"},
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=False,
        use_vllm=on_gpu,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=_GPU_SHARE,
        vllm_max_model_length=config.data.max_prompt_length + config.data.max_response_length,
        vllm_importance_sampling_correction=False,
        seed=config.trainer.seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


class Clock(TrainerCallback):
    """Times steps and TRL's own phases, and validates outside of the clock."""

    def __init__(self, config: RunConfig, out: Path, record: Record, tokenizer: PreTrainedTokenizerBase) -> None:
        """Validate every ``trainer.test_freq`` steps, and store the record then; ``trainer`` is set once there is one."""
        self._config = config
        self._out = out
        self._record = record
        self._tokenizer = tokenizer
        self._held_out = questions(config, "val")
        self.trainer: GRPOTrainer | None = None
        self.phases: dict[str, float] = defaultdict(float)
        self._wall_s = 0.0
        self._begun = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Validate the start, then start the clock."""
        self._validate(0)
        self._begun = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Close a step."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._begun
        self._wall_s += seconds
        phases = {_PHASES[name]: value for name, value in self.phases.items() if name in _PHASES}
        phases["score_and_update"] = seconds - sum(phases.values())
        timings = {f"timing_s/{phase}": value for phase, value in phases.items()}
        self._record.steps.append({"step": state.global_step, "seconds": seconds, "wall_s": self._wall_s, **timings})
        self.phases.clear()
        every = self._config.trainer.test_freq
        if (every > 0 and state.global_step % every == 0) or state.global_step == state.max_steps:
            self._validate(state.global_step)
        self._begun = time.perf_counter()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, float], **kwargs: Any
    ) -> None:
        """Add TRL's own numbers to the step they belong to."""
        if self._record.steps and self._record.steps[-1]["step"] == state.global_step and "reward" in logs:
            kept = {"reward/mean": "reward", "response_length/mean": "completions/mean_length", "tokens": "num_tokens"}
            self._record.steps[-1].update({ours: float(logs[theirs]) for ours, theirs in kept.items() if theirs in logs})

    def _validate(self, step: int) -> None:
        assert self.trainer is not None
        prompts = [
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            for messages in self._held_out["prompt"]
        ]
        answers = self._answers(prompts)
        scored = [last_number_match("", text, a, {}) for text, a in zip(answers, self._held_out["answer"], strict=True)]
        accuracy = sum(scored) / len(scored)
        self._record.validations.append({"step": step, "wall_s": self._wall_s, "val/accuracy/mean": accuracy})
        if torch.cuda.is_available():
            self._record.peak_allocated_gib = torch.cuda.max_memory_allocated() / 2**30
        self._record.write(self._out)
        print(f"step {step}: {self._wall_s:.1f} s of training, held-out accuracy {accuracy:.3f}", flush=True)

    def _answers(self, prompts: list[list[int]]) -> list[str]:
        """Greedy answers of the present weights."""
        budget = self._config.data.max_response_length
        if self.trainer.use_vllm:
            from vllm import SamplingParams

            self.trainer.vllm_generation.sync_weights()
            inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
            params = SamplingParams(temperature=0.0, max_tokens=budget)
            outputs = self.trainer.vllm_generation.llm.generate(inputs, params, use_tqdm=False)
            return [output.outputs[0].text for output in outputs]
        texts = []
        for prompt in prompts:
            ids = torch.tensor([prompt], device=self.trainer.model.device)
            found = self.trainer.model.generate(ids, max_new_tokens=budget, do_sample=False)
            texts.append(self._tokenizer.decode(found[0, len(prompt) :], skip_special_tokens=True))
        return texts


def _record_phases(clock: Clock) -> None:
    """Have TRL's profiling blocks report to the clock; without a tracker they report to nobody."""

    def report(self: ProfilingContext, duration: float) -> None:
        clock.phases[self.name.removeprefix("GRPOTrainer.")] += duration

    ProfilingContext._log_metrics = report  # type: ignore[method-assign]


def main(model: Path, out: Path, overrides: list[str]) -> None:
    """Train, and write the record."""
    config = compose_run(["experiment=smollm2_arithmetic", f"model.path='{model}'", *overrides])
    tokenizer = AutoTokenizer.from_pretrained(model)
    args = trl_config(config, out.with_suffix(""))
    stated = {name: value for name, value in args.to_dict().items() if isinstance(value, (int, float, str, bool))}
    record = Record(settings={"trl": trl.__version__, "overrides": overrides, **stated})
    clock = Clock(config, out, record, tokenizer)
    _record_phases(clock)
    clock.trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=score,
        args=args,
        train_dataset=questions(config, "train"),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    clock.trainer.train()
    record.write(out)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:])
