"""A phase of the step: memory is made ready, the phase is timed and named, and running out of memory is explained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from megatron_rl.observability.profiler import PhaseRanges, StepProfiler
from megatron_rl.observability.timers import PhaseWatch, Timers, device_synchronizer
from megatron_rl.training.job import Job
from megatron_rl.training.memory_phases import MemoryPhases
from megatron_rl.training.out_of_memory import MemoryAdvisor
from megatron_rl.types.metrics import Metrics

SWITCH = "switch"
"""Phase in whose time the moves between two phases of a step count."""


class StepPhases:
    """``with phases("gen"): ...`` inside ``with phases.step(7): ...``; phases do not nest."""

    def __init__(self, timers: Timers, memory: MemoryPhases, advisor: MemoryAdvisor, profiler: StepProfiler) -> None:
        """Join what takes part in every phase."""
        self._timers = timers
        self.memory = memory
        self._advisor = advisor
        self._profiler = profiler

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Run one phase. Syncs: the device, on entry and exit.

        Raises OutOfMemoryInPhaseError where an allocation fails.
        """
        with self._advisor.explained(phase):
            if self._timers.in_step and self.memory.moves(phase):
                with self._timers(SWITCH):
                    self.memory.enter(phase)
            with self._profiler.phase(phase), self._timers(phase):
                self.memory.enter(phase)
                yield

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Time the whole step, and profile it if it is among the chosen."""
        with self._profiler.step(step), self._timers.step():
            yield

    def flush(self) -> Metrics:
        """Seconds since the last flush, see ``Timers.flush``."""
        return self._timers.flush()


def build_step_phases(
    job: Job, advisor: MemoryAdvisor, memory: MemoryPhases | None = None, watches: Sequence[PhaseWatch] = ()
) -> StepPhases:
    """The phases of this rank's steps, timed on its device and profiled as configured.

    Args:
        job: the job.
        advisor: explains running out of memory.
        memory: moves what the phases ask for; None = nothing moves.
        watches: told of every phase, beside the profilers' ranges.
    """
    device = job.platform.device
    timers = Timers(device_synchronizer(device), watches=[*watches, PhaseRanges(device)])
    profiler = StepProfiler(job.config.profiler, job.rank, device, job.run_dir)
    return StepPhases(timers, memory or MemoryPhases(), advisor, profiler)
