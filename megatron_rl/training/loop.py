"""The loop around the step: progress, logging, validation, saving, stopping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_rl.config.rank_contract import EXIT_CODE_REQUEUE
from megatron_rl.config.training import TrainerConfig
from megatron_rl.data.stream import PromptStream
from megatron_rl.observability.health import HealthMonitor
from megatron_rl.observability.logger import MetricLogger
from megatron_rl.observability.samples import SampleLog
from megatron_rl.training.callbacks import TrainerCallback
from megatron_rl.training.interrupt import InterruptFlag
from megatron_rl.training.ppo_trainer import PpoTrainer, StepResult
from megatron_rl.training.run_state import RunState, saves_after
from megatron_rl.training.step_phases import StepPhases
from megatron_rl.training.step_sampler import SamplingInterruptedError
from megatron_rl.training.throughput_metrics import ThroughputMeter
from megatron_rl.training.validation import Validator
from megatron_rl.types.metrics import Metric, Metrics, merge


@dataclass(frozen=True)
class LoopParts:
    """Everything the loop drives; built by ``training.rl``."""

    trainer: PpoTrainer
    stream: PromptStream
    state: RunState
    validator: Validator | None
    logger: MetricLogger
    samples: SampleLog
    health: HealthMonitor
    throughput: ThroughputMeter
    callbacks: Sequence[TrainerCallback]
    phases: StepPhases
    interrupt: InterruptFlag


class TrainingLoop:
    """Runs steps until done or told to stop; consumes prompts, leaves metrics, samples and checkpoints."""

    def __init__(self, parts: LoopParts, config: TrainerConfig, total_steps: int) -> None:
        """``total_steps`` counts from the run's beginning, resumed steps included."""
        self._parts = parts
        self._config = config
        self._total_steps = total_steps
        self._before_training: Metrics = {}
        """Validation of the weights the run started from; part of the first step's record."""

    def run(self) -> int:
        """Train; returns the process exit code (0, or ``EXIT_CODE_REQUEUE`` after a signal)."""
        with self._parts.interrupt:
            return self._run()

    def _run(self) -> int:
        parts = self._parts
        start = self._prepare()
        for callback in parts.callbacks:
            callback.on_train_begin(start, self._total_steps)
        with parts.logger.progress(start, self._total_steps):
            step, interrupted = self._steps(start)
        for callback in parts.callbacks:
            callback.on_train_end(step)
        return EXIT_CODE_REQUEUE if interrupted else 0

    def _prepare(self) -> int:
        """Load, fill the engine, validate; returns the step to go on from. None of it counts as a step's time."""
        parts = self._parts
        with parts.phases("resume"):
            start = parts.state.resume()
        with parts.phases("update_weights"):
            parts.trainer.weight_sync.push(version=start)
        if start == 0 and self._config.val_before_train and parts.validator is not None:
            with parts.phases("testing"):
                self._before_training = self._validate(0)
        parts.phases.flush()
        return start

    def _steps(self, start: int) -> tuple[int, bool]:
        """Take steps; returns the last one taken and whether a signal ended the loop."""
        state, step = self._parts.state, start
        while step < self._total_steps:
            before = state.position()
            try:
                interrupted = self._one_step(step + 1)
            except SamplingInterruptedError:
                # Nothing has been learned yet: as if the signal had come before the step.
                with self._parts.phases("abandon"):
                    state.rewind(before)
                self._save(step)
                return step, True
            step += 1
            if interrupted:
                return step, True
        return step, False

    def _one_step(self, step: int) -> bool:
        parts, last = self._parts, step == self._total_steps
        with parts.phases.step(step):
            result = parts.trainer.step(step, parts.stream.next_batch)
            self._check_replicas(step)
            interrupted = parts.interrupt.any_rank()
            if saves_after(step, self._total_steps, save_freq=self._config.save_freq, interrupted=interrupted):
                self._save(step)
        metrics = merge([result.metrics, parts.phases.flush()])
        if self._tests(step, last):
            with parts.phases("testing"):
                metrics = {**metrics, **self._validate(step)}
            metrics = {**metrics, **parts.phases.flush()}
        self._report(step, result, metrics)
        return interrupted and not last

    def _save(self, step: int) -> None:
        with self._parts.phases("save_checkpoint"):
            self._parts.state.save(step)

    def _check_replicas(self, step: int) -> None:
        """Stop where ranks that must hold equal weights have drifted apart."""
        every = self._config.replica_check_freq
        if every > 0 and step % every == 0:
            with self._parts.phases("check_replicas"):
                for role in self._parts.state.roles.values():
                    role.check_replicas()

    def _report(self, step: int, result: StepResult, metrics: Metrics) -> None:
        parts = self._parts
        extra = [callback.on_step_end(step, result) for callback in parts.callbacks]
        trained_lengths = result.rollouts.lengths_B[result.trained_B].tolist()
        metrics = merge([metrics, parts.throughput.metrics(result.sampled_tokens, trained_lengths, metrics), *extra])
        if "val/step" not in metrics:
            metrics = {**metrics, **self._before_training}
        self._before_training = {}
        metrics["training/epoch"] = Metric(float(result.prompts.epoch), "last")
        parts.logger.log(step, metrics)
        parts.samples.write(step, result)
        parts.health.observe(metrics)

    def _validate(self, step: int) -> Metrics:
        if self._parts.validator is None:
            return {}
        metrics = self._parts.validator.run(policy_version=self._parts.trainer.weight_sync.version)
        return {**metrics, "val/step": Metric(float(step), "last")}

    def _tests(self, step: int, last: bool) -> bool:
        every = self._config.test_freq
        return (every > 0 and step % every == 0) or (last and self._config.val_at_end)
