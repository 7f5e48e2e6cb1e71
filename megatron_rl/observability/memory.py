"""Memory by phase: the peak of a rank while a phase of the step ran. GiB = 2^30 bytes.

On a GPU the allocator's own peaks, and what the driver counts when the phase ends (other libraries, sleeping engines). On
a CPU the largest resident set of the process, which Linux keeps and forgets on request; elsewhere it is that of the whole
process so far, so later phases show at least what earlier ones took.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Protocol

import torch

from megatron_rl.observability.memory_summary import Peaks
from megatron_rl.types.metrics import Metric, Metrics

GIB = 1024**3
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
"""What makes Linux set the peak resident set of a process back to the present one (proc(5))."""

_STEP_METRICS = {
    "allocated": "perf/cuda_memory_allocated_gb",
    "reserved": "perf/cuda_memory_reserved_gb",
    "cpu": "perf/cpu_memory_used_gb",
}


class Gauge(Protocol):
    """Reads the peak between two points in time."""

    def restart(self) -> None:
        """Forget earlier peaks."""

    def read(self) -> dict[str, float]:
        """Kind -> GiB: peaks since the last restart, and what is held now (``..._end``)."""


class HostGauge:
    """Resident memory of this process."""

    def restart(self) -> None:
        """Ask the kernel to forget the peak."""
        _CLEAR_REFS.write_text(_FORGET_PEAK)

    def read(self) -> dict[str, float]:
        """Resident set, peak and now."""
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return {kind: int(lines[name].split()[0]) * 1024 / GIB for kind, name in (("cpu", "VmHWM"), ("cpu_end", "VmRSS"))}


class WholeProcessGauge:
    """Resident memory where the kernel cannot forget a peak."""

    def restart(self) -> None:
        """Nothing can be forgotten."""

    def read(self) -> dict[str, float]:
        """Peak since the process began; macOS counts bytes, others KiB."""
        unit = 1 if sys.platform == "darwin" else 1024
        return {"cpu": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB}


def host_gauge() -> Gauge:
    """What measures the memory of this process."""
    return HostGauge() if os.access(_CLEAR_REFS, os.W_OK) else WholeProcessGauge()


class CudaGauge:
    """The caching allocator and the driver, with the host's memory beside them."""

    def __init__(self, device: torch.device) -> None:
        """Watch one GPU."""
        self._device = device
        self._host = host_gauge()

    def restart(self) -> None:
        """Forget the allocator's peaks."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._host.restart()

    def read(self) -> dict[str, float]:
        """Peaks of the allocator and what it holds now; the driver's figure is that of this moment."""
        free, total = torch.cuda.mem_get_info(self._device)
        found = {
            "allocated": torch.cuda.max_memory_allocated(self._device),
            "reserved": torch.cuda.max_memory_reserved(self._device),
            "device": total - free,
            "allocated_end": torch.cuda.memory_allocated(self._device),
            "reserved_end": torch.cuda.memory_reserved(self._device),
        }
        return {kind: size / GIB for kind, size in found.items()} | self._host.read()


def gauge_of(device: torch.device) -> Gauge:
    """What measures memory on ``device``."""
    return CudaGauge(device) if device.type == "cuda" else host_gauge()


def card_gib(device: torch.device) -> float | None:
    """Memory of the card; None on a CPU."""
    return torch.cuda.get_device_properties(device).total_memory / GIB if device.type == "cuda" else None


class PhaseMemory:
    """Peaks by phase, of the present step and of the whole attempt; the timers say when a phase begins and ends."""

    def __init__(self, gauge: Gauge) -> None:
        """Measure with ``gauge``."""
        self._gauge = gauge
        self._step: Peaks = {}
        self.attempt: Peaks = {}

    def begin(self, phase: str) -> None:
        """A phase starts."""
        self._gauge.restart()

    def end(self, phase: str) -> None:
        """A phase is over; repeated phases keep the larger peak."""
        reading = self._gauge.read()
        for peaks in (self._step, self.attempt):
            known = peaks.setdefault(phase, {})
            known.update({kind: max(size, known.get(kind, 0.0)) for kind, size in reading.items()})

    def flush(self) -> Peaks:
        """Peaks since the last flush."""
        peaks, self._step = self._step, {}
        return peaks


def memory_metrics(peaks: Peaks) -> Metrics:
    """Peaks and remains of each phase for the curves, and the step's largest under the field's names (gb means GiB)."""
    found: Metrics = {}
    for phase, kinds in peaks.items():
        main = "allocated" if "allocated" in kinds else "cpu"
        found[f"memory/{phase}_gib"] = Metric(kinds[main], "max")
        if f"{main}_end" in kinds:
            found[f"memory_after/{phase}_gib"] = Metric(kinds[f"{main}_end"], "max")
        for kind, name in _STEP_METRICS.items():
            if kind in kinds:
                found[name] = Metric(max(kinds[kind], found[name].value if name in found else 0.0), "max")
    return found
