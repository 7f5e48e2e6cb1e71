"""Memory by phase over all ranks: metrics of each step, and a summary of every rank in the run folder at the end."""

from __future__ import annotations

import torch
import torch.distributed as dist

from megatron_rl.observability.memory import PhaseMemory, card_gib, memory_metrics
from megatron_rl.observability.memory_summary import MemorySummary, Peaks, write_memory_summary
from megatron_rl.parallel.gather import gather_objects
from megatron_rl.training.callbacks import TrainerCallback
from megatron_rl.training.job import Job
from megatron_rl.training.ppo_trainer import StepResult
from megatron_rl.types.metrics import Metrics


class MemoryReport(TrainerCallback):
    """Reports what the timers' memory watch has seen."""

    def __init__(self, job: Job, memory: PhaseMemory) -> None:
        """Report ``memory`` of this rank beside that of the others."""
        self._job = job
        self._memory = memory

    def on_train_begin(self, start_step: int, total_steps: int) -> None:
        """What came before the first step is in the summary only."""
        self._memory.flush()

    def on_step_end(self, step: int, result: StepResult) -> Metrics:
        """The fullest rank's peaks. Collectives: one all-reduce over all ranks, which run the same phases."""
        return memory_metrics(self._fullest(self._memory.flush()))

    def on_train_end(self, last_step: int) -> None:
        """Write the summary. Collectives: gathers from all ranks."""
        ranks = gather_objects(self._memory.attempt, self._job.host_group)
        if self._job.is_main:
            write_memory_summary(self._job.run_dir, MemorySummary(card_gib(self._job.platform.device), ranks))

    def _fullest(self, peaks: Peaks) -> Peaks:
        names = [(phase, kind) for phase, kinds in peaks.items() for kind in kinds]
        sizes = torch.tensor([peaks[phase][kind] for phase, kind in names], dtype=torch.float64)
        dist.all_reduce(sizes, op=dist.ReduceOp.MAX, group=self._job.host_group)
        found: Peaks = {}
        for (phase, kind), size in zip(names, sizes.tolist(), strict=True):
            found.setdefault(phase, {})[kind] = size
        return found
