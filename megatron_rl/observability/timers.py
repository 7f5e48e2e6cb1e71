"""Wall time of a step and of its phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from megatron_rl.types.metrics import Metric, Metrics


def _nothing() -> None:
    """A CPU has nothing to wait for."""


def device_synchronizer(device: torch.device) -> Callable[[], None]:
    """What makes queued work of ``device`` finish, so that its time falls into the phase that queued it."""
    return torch.cuda.synchronize if device.type == "cuda" else _nothing


class PhaseWatch(Protocol):
    """Is told when a phase begins and ends; what it does then counts as ``timing_s/other``."""

    def begin(self, phase: str) -> None:
        """Just before the phase."""

    def end(self, phase: str) -> None:
        """Just after it, the device being idle."""


class Timers:
    """Adds up seconds by phase: ``with timers("gen"): ...`` inside ``with timers.step(): ...``.

    Phases do not nest, so their sum is the step; what lies between them is reported as ``timing_s/other``.
    """

    def __init__(
        self,
        synchronize: Callable[[], None] = _nothing,
        clock: Callable[[], float] = time.perf_counter,
        watches: Sequence[PhaseWatch] = (),
    ) -> None:
        """``synchronize`` runs before each reading of ``clock`` (seconds)."""
        self._watches = watches
        self._synchronize = synchronize
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._phase: str | None = None
        self._step_s: float | None = None
        self._in_step = False
        self._in_step_s = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time one phase; repeated phases add up. Syncs: the device, on entry and exit."""
        assert self._phase is None, f"phase {phase} inside phase {self._phase} would be counted twice"
        self._phase = phase
        for watch in self._watches:
            watch.begin(phase)
        start = self._now()
        try:
            yield
        finally:
            seconds = self._now() - start
            for watch in reversed(self._watches):
                watch.end(phase)
            self._phase = None
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
            if self._in_step:
                self._in_step_s += seconds

    @property
    def in_step(self) -> bool:
        """Whether a step is being timed."""
        return self._in_step

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time the whole step. Syncs: the device, on entry and exit."""
        assert not self._in_step
        self._in_step, self._in_step_s = True, 0.0
        start = self._now()
        try:
            yield
        finally:
            self._step_s = self._now() - start
            self._in_step = False

    def flush(self) -> Metrics:
        """Seconds since the last flush as ``timing_s/<phase>``; with a finished step also ``step`` and ``other``."""
        seconds = dict(self._seconds)
        if self._step_s is not None:
            seconds |= {"step": self._step_s, "other": self._step_s - self._in_step_s}
        self._seconds, self._step_s = {}, None
        return {f"timing_s/{phase}": Metric(value, "sum") for phase, value in seconds.items()}

    def _now(self) -> float:
        self._synchronize()
        return self._clock()
