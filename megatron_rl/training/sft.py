"""The ``sft`` task: supervised fine-tuning of the actor's model, ending in a Hugging Face folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from megatron_rl.config.rank_contract import EXIT_CODE_REQUEUE
from megatron_rl.config.run_files import HF_FOLDER, checkpoints_dir
from megatron_rl.config.training import TrainerConfig
from megatron_rl.data.prompts import tokenizer_of
from megatron_rl.data.sft_pairs import SftExample, load_sft_examples
from megatron_rl.data.stream import BatchOrder
from megatron_rl.observability.logger import MetricLogger
from megatron_rl.runtime.random_states import rng_state, set_rng_state
from megatron_rl.training.checkpoint import CheckpointStore
from megatron_rl.training.export import export_actor
from megatron_rl.training.interrupt import InterruptFlag
from megatron_rl.training.job import Job, open_logger
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.model_loading import build_actor
from megatron_rl.training.out_of_memory import memory_advisor
from megatron_rl.training.roles import prefixed
from megatron_rl.training.run_state import resume_folder, saves_after
from megatron_rl.training.sft_trainer import SftTrainer
from megatron_rl.training.step_phases import StepPhases, build_step_phases
from megatron_rl.types.metrics import Metric, Metrics


def fine_tune(job: Job) -> int:
    """Train on ``sft.train_files`` and export; returns the exit code. Collectives: all ranks."""
    config = job.config
    examples = load_sft_examples(config.sft, config.data, tokenizer_of(config.model))
    order = BatchOrder(len(examples), config.sft.batch_size, seed=config.trainer.seed, shuffle=True, size_key="sft.batch_size")
    total_steps = config.sft.total_steps or config.sft.total_epochs * order.batches_per_epoch
    advisor = memory_advisor(job, None)
    with advisor.explained("build"):
        role = build_actor(job, total_steps)
    state = SftState(
        CheckpointStore(checkpoints_dir(config) / "sft", config.trainer.max_checkpoints_to_keep),
        role,
        order,
        fingerprint_of(examples),
        config.trainer,
    )
    start = state.resume()
    phases = build_step_phases(job, advisor)
    run = _SftRun(SftTrainer(role), state, examples, phases, InterruptFlag(job.host_group), total_steps)
    with closing(open_logger(job, config.sft.log_freq)) as logger, logger.progress(start, total_steps):
        finished = run.steps(start, logger)
    if not finished:
        return EXIT_CODE_REQUEUE
    export_actor(job, role, job.run_dir / HF_FOLDER)
    return 0


def fingerprint_of(examples: Sequence[SftExample]) -> str:
    """SHA-256 over the token ids and prompt lengths, in order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr((example.prompt_length, tuple(example.token_ids))).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class SftState:
    """Weights, optimizer, schedule, data position and generators of one fine-tuning run."""

    store: CheckpointStore
    role: MegatronRole
    order: BatchOrder
    fingerprint: str
    config: TrainerConfig

    def save(self, step: int) -> Path:
        """Write a complete checkpoint. Collectives: the world."""
        return self.store.save(step, {"actor": self.role}, {"step": step, "data": self._data(), "rng": rng_state()})

    def resume(self) -> int:
        """Load what the resume mode asks for; returns the steps done (0 for a fresh start).

        Raises ValueError where data, batch size or seed changed. Collectives: the world.
        """
        folder = resume_folder(self.config, self.store)
        if folder is None:
            return 0
        extra = self.store.load(folder, {"actor": self.role})
        data = extra["data"]
        changed = [name for name, value in self._data().items() if name not in ("epoch", "position") and data[name] != value]
        if changed:
            raise ValueError(
                f"cannot resume from {folder}: {', '.join(changed)} of the fine-tuning data changed since; restore it, or "
                "start with trainer.resume_mode=disable"
            )
        self.order.seek(data["epoch"], data["position"])
        set_rng_state(extra["rng"])
        return int(extra["step"])

    def _data(self) -> dict[str, int | str]:
        order = self.order
        return {
            "epoch": order.epoch,
            "position": order.position,
            "fingerprint": self.fingerprint,
            "batch_size": order.batch_size,
            "seed": order.seed,
        }


@dataclass(frozen=True)
class _SftRun:
    """What the loop drives."""

    trainer: SftTrainer
    state: SftState
    examples: Sequence[SftExample]
    phases: StepPhases
    interrupt: InterruptFlag
    total_steps: int

    def steps(self, start: int, logger: MetricLogger) -> bool:
        """Take the steps that are left; returns False where a signal ended them early."""
        with self.interrupt:
            for step in range(start + 1, self.total_steps + 1):
                metrics, interrupted = self._one_step(step)
                logger.log(step, metrics)
                if interrupted and step < self.total_steps:
                    return False
        return True

    def _one_step(self, step: int) -> tuple[Metrics, bool]:
        batch = [self.examples[row] for row in self.state.order.next_batch()[1]]
        with self.phases.step(step):
            with self.phases("update_actor"):
                metrics = prefixed("sft", self.trainer.step(batch))
            interrupted = self.interrupt.any_rank()
            if saves_after(step, self.total_steps, save_freq=self.state.config.save_freq, interrupted=interrupted):
                with self.phases("save_checkpoint"):
                    self.state.save(step)
        metrics |= self.phases.flush()
        tokens = sum(len(example.token_ids) for example in batch)
        metrics["perf/tokens_per_second"] = Metric(tokens / metrics["timing_s/step"].value)
        return metrics, interrupted
