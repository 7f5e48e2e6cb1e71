"""What the reshard benchmark keeps of each case: seconds with their spread, bytes, memory, prediction."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One way of moving one model's weights, on the slowest rank. Bytes are of one rank, the one with most of them."""

    model: str
    case: str
    """Layouts, for example ``tp2_to_tp1dp2``."""
    way: str
    seconds: float
    """Median."""
    low_s: float
    high_s: float
    predicted_s: float | None = None
    aliased_bytes: int = 0
    copied_bytes: int = 0
    received_bytes: int = 0
    bound_bytes: int | None = None
    """Least that had to be received."""
    peak_bytes: int | None = None
    """Device memory allocated at the worst moment of one transfer, beyond what was held before it."""
    correct: bool | None = None
    """Whether the destination had the right bits afterwards."""
    note: str = ""

    def to_json_object(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of repeated runs and the memory of one of them."""

    seconds: float
    low_s: float
    high_s: float
    peak_bytes: int | None


def time_runs(
    run: Callable[[], object],
    device: torch.device,
    repeats: int,
    warmups: int = 2,
    before: Callable[[], object] = lambda: None,
) -> Timing:
    """Wall-clock seconds of ``run``, the device's work included; the first runs do not count, nor does ``before``."""
    on_gpu = device.type == "cuda"

    def once() -> float:
        before()
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    for _ in range(warmups):
        once()
    peak = None
    if on_gpu:
        before()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - held
    seconds = sorted(once() for _ in range(repeats))
    return Timing(median(seconds), seconds[0], seconds[-1], peak)


def table(figures: list[Figure]) -> str:
    """Figures as Markdown."""
    columns = "model|case|way|ms (low - high)|predicted ms|aliased MB|copied MB|received MB|bound MB|peak MiB|bits|note".split(
        "|"
    )
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for f in figures:
        spread = f"{_ms(f.seconds)} ({_ms(f.low_s)} - {_ms(f.high_s)})"
        peak = "" if f.peak_bytes is None else f"{f.peak_bytes / 2**20:.1f}"
        sizes = (f.aliased_bytes, f.copied_bytes, f.received_bytes, f.bound_bytes)
        megabytes = " | ".join("" if size is None else f"{size / 1e6:.1f}" for size in sizes)
        bits = {True: "equal", False: "DIFFER", None: ""}[f.correct]
        cells = (f.model, f.case, f.way, spread, _ms(f.predicted_s), megabytes, peak, bits, f.note)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"
