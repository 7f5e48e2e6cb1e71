"""Where a phase's time goes: kernels of a Chrome trace that ``profiler=torch`` left, added up by name."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KERNEL, _OPERATOR = ("kernel", "gpu_memcpy", "gpu_memset"), ("cpu_op",)
_NAME_WIDTH = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """All runs of one kernel. Example: ``KernelTime(name="nvjet_tst_128x256", ms=120.5, count=336)``."""

    name: str
    ms: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProfile:
    """One phase of one step on one rank; on a CPU operators stand in for kernels."""

    trace: str
    span_ms: float
    """From the first kernel's start to the last one's end."""
    idle_frac: float
    """Of the span, in which no kernel ran."""
    top: tuple[KernelTime, ...]
    """Those that took longest."""

    def markdown(self) -> str:
        """A table."""
        head = f"{self.trace}: {self.span_ms:,.1f} ms from first kernel to last, {self.idle_frac:.1%} of it without any."
        rows = [
            f"| {kernel.ms:,.2f} | {kernel.ms / self.span_ms:.1%} | {kernel.count} | `{kernel.name[:_NAME_WIDTH]}` |"
            for kernel in self.top
        ]
        return "\n".join([head, "", "| ms | of span | runs | kernel |", "| --- | --- | --- | --- |", *rows])


def read_profiles(folder: Path, rows: int = 20) -> list[PhaseProfile]:
    """Every trace in ``folder``."""
    found = []
    for path in sorted(folder.glob("*.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        profile = summarise(path.name.removesuffix(".json.gz"), events, rows)
        found += [] if profile is None else [profile]
    return found


def summarise(trace: str, events: Iterable[dict[str, Any]], rows: int) -> PhaseProfile | None:
    """Add up the events of a trace (microseconds); None where nothing ran."""
    timed = [event for event in events if "dur" in event]
    kernels = [event for event in timed if event.get("cat") in _KERNEL] or [e for e in timed if e.get("cat") in _OPERATOR]
    if not kernels:
        return None
    totals: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        totals[kernel["name"]].append(kernel["dur"])
    busy_us, span_us = _covered([(kernel["ts"], kernel["ts"] + kernel["dur"]) for kernel in kernels])
    top = [KernelTime(name=name, ms=sum(us) / 1e3, count=len(us)) for name, us in totals.items()]
    return PhaseProfile(
        trace=trace,
        span_ms=span_us / 1e3,
        idle_frac=1 - busy_us / span_us if span_us else 0.0,
        top=tuple(sorted(top, key=lambda kernel: -kernel.ms)[:rows]),
    )


def _covered(intervals: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Length of the union of the intervals, and from the first start to the last end."""
    ordered = sorted(intervals)
    covered, reached = 0.0, ordered[0][0]
    for start, end in ordered:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered, reached - ordered[0][0]
