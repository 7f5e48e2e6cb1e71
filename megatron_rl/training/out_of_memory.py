"""Running out of memory, explained where it happens: the phase, what was planned, what was measured, what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.memory_part import Phase, PhaseMemory
from megatron_rl.observability.memory import Gauge, gauge_of
from megatron_rl.training.job import Job
from megatron_rl.training.memory_advice import settings_to_change
from megatron_rl.training.memory_plan import ESTIMATOR_PHASES

_SIGNS = ("out of memory", "OutOfMemoryError")
"""Words of errors that are not torch's own: the engine's pool raises RuntimeError, other ranks quote each other."""
_GIB = 2**30


class OutOfMemoryInPhaseError(RuntimeError):
    """A phase needed more memory than there is."""


class MemoryAdvisor:
    """Turns an allocation failure inside a phase into one block of text."""

    def __init__(self, config: RunConfig, rank: int, plan: Mapping[Phase, PhaseMemory] | None, gauge: Gauge) -> None:
        """Compare what was planned with what is measured at the failure.

        Args:
            config: what the advice changes.
            rank: of this process.
            plan: estimate by phase; None = the actor has the card to itself, and nothing was estimated.
            gauge: read at the failure.
        """
        self._config = config
        self._rank = rank
        self._plan = plan
        self._gauge = gauge

    @contextmanager
    def explained(self, phase: str) -> Iterator[None]:
        """Raises OutOfMemoryInPhaseError in the place of a failed allocation of the body; other errors pass."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error) or isinstance(error, OutOfMemoryInPhaseError):
                raise
            raise OutOfMemoryInPhaseError(self._report(phase, error)) from error

    def _report(self, phase: str, error: Exception) -> str:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].partition(" GPU ")[0]
        lines = [f"out of memory in phase {phase} on rank {self._rank}: {reason}"]
        lines.append(f"  planned:  {self._planned(phase)}")
        lines.append(f"  measured: {measured_text(self._gauge.read())}")
        lines.append("  change one of these, or both:")
        lines += [f"    {setting}" for setting in settings_to_change(self._config, phase, alone=self._plan is None)]
        return "\n".join(lines)

    def _planned(self, phase: str) -> str:
        estimated = self._plan.get(ESTIMATOR_PHASES[phase]) if self._plan and phase in ESTIMATOR_PHASES else None
        if estimated is None:
            return "not estimated for this phase"
        largest = sorted(estimated.parts, key=lambda part: -part.size_bytes)[:5]
        listed = ", ".join(f"{part.role} {part.kind} {part.size_bytes / _GIB:.1f}" for part in largest)
        return f"{estimated.total_bytes / _GIB:.1f} GiB, of which {listed}"


def memory_advisor(job: Job, plan: Mapping[Phase, PhaseMemory] | None) -> MemoryAdvisor:
    """The advisor of this rank; see :class:`MemoryAdvisor`."""
    return MemoryAdvisor(job.config, job.rank, plan, gauge_of(job.platform.device))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, here or on a rank whose error is quoted."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in _SIGNS)


def measured_text(reading: Mapping[str, float]) -> str:
    """A gauge's reading (GiB) in words."""
    if "device" not in reading:
        return f"{reading['cpu']:.1f} GiB resident in this process"
    return (
        f"{reading['allocated']:.1f} GiB allocated by torch at the peak of this phase, "
        f"{reading['reserved_end']:.1f} reserved now; {reading['device']:.1f} in use on the card, "
        f"{reading['device'] - reading['reserved_end']:.1f} of it outside of torch "
        "(the engine's pool, CUDA graphs, communicators, other processes)"
    )
