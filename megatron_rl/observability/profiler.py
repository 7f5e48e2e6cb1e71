"""Profiling chosen steps, and the names of phases in whatever profiler is attached."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from megatron_rl.config.profiler import ProfilerConfig

logger = logging.getLogger(__name__)

PROFILE_FOLDER = "profile"
_TABLE_ROWS = 40
_UNDER_NSYS = "NSYS_PROFILING_SESSION_ID"
"""Set by nsys in the processes it starts."""


class StepProfiler:
    """Watches the steps of ``profiler.steps`` on the ranks of ``profiler.ranks``; does nothing on others."""

    def __init__(self, config: ProfilerConfig, rank: int, device: torch.device, run_dir: Path) -> None:
        """Traces go into ``run_dir/profile``.

        Raises ValueError where the tool cannot work on ``device``.
        """
        if config.tool == "nsys" and device.type != "cuda":
            raise ValueError("profiler.tool=nsys watches GPUs, and this run is on a CPU; use profiler.tool=torch")
        self._config = config
        self._rank = rank
        self._device = device
        self._folder = run_dir / PROFILE_FOLDER
        self._step: int | None = None
        self._active = config.tool != "none" and rank in config.ranks
        if self._active and config.tool == "nsys" and _UNDER_NSYS not in os.environ:
            logger.warning(
                "profiler.tool=nsys, but nsys did not start this process; put in front of the command: "
                "nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=repeat"
            )

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Watch the body, or the chosen phases in it, if ``step`` is among the chosen. Syncs: the device, at both ends."""
        if not (self._active and step in self._config.steps):
            yield
            return
        self._step = step
        try:
            with nullcontext() if self._config.phases else self._watch(f"step_{step:06d}"):
                yield
        finally:
            self._step = None

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """Watch the body if ``phase`` is among the chosen, in a chosen step. Syncs: as ``step``."""
        chosen = self._step is not None and phase in self._config.phases
        with self._watch(f"step_{self._step:06d}_{phase}") if chosen else nullcontext():
            yield

    def _watch(self, name: str) -> AbstractContextManager[None]:
        return _nsys_capture(self._device) if self._config.tool == "nsys" else self._torch_trace(name)

    @contextmanager
    def _torch_trace(self, name: str) -> Iterator[None]:
        on_gpu = self._device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        with profile(activities=activities, with_stack=self._config.with_stack, acc_events=True) as trace:
            yield
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{name}_rank_{self._rank}"
        trace.export_chrome_trace(str(self._folder / f"{name}.json.gz"))
        order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        table = trace.key_averages().table(sort_by=order, row_limit=_TABLE_ROWS)
        (self._folder / f"{name}.txt").write_text(table, encoding="utf-8")


class PhaseRanges:
    """Marks each phase: a range of torch's profiler, and on a GPU an NVTX range for nsys. A ``PhaseWatch``."""

    def __init__(self, device: torch.device) -> None:
        """Mark the work of one device."""
        self._on_gpu = device.type == "cuda"
        self._range: record_function | None = None

    def begin(self, phase: str) -> None:
        """Open the ranges."""
        self._range = record_function(phase)
        self._range.__enter__()  # type: ignore[no-untyped-call]
        if self._on_gpu:
            torch.cuda.nvtx.range_push(phase)  # type: ignore[no-untyped-call]

    def end(self, phase: str) -> None:
        """Close them."""
        assert self._range is not None, f"phase {phase} did not begin"
        if self._on_gpu:
            torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
        self._range.__exit__(None, None, None)
        self._range = None


@contextmanager
def _nsys_capture(device: torch.device) -> Iterator[None]:
    torch.cuda.synchronize(device)
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
        torch.cuda.synchronize(device)
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
