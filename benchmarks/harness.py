"""Timing, peak memory and reporting shared by the benchmarks: one row per measured variant, kept as data.

Device work is timed with events; every figure is the median of several runs after warm-up, with its extremes.
"""

from __future__ import annotations

import gc
import json
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Literal

import torch

Bound = Literal["matmul", "copy"]
"""Which ceiling a row is held against."""


PROCESS_LIMIT_S = 600
SHORT_MS = 10.0
"""Runs shorter than this are timed several at a time."""


def _nothing() -> None:
    """Leave everything as it is."""


def best_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


class OutOfTimeError(BaseException):
    """The run has used up its time. No Exception: it passes through handlers that make a note of a failure and go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured variant."""

    case: str
    """What is computed, with its sizes. Variants of one case are compared with each other."""
    variant: str
    """Who computes it."""
    ms: float | None = None
    """Median over the runs."""
    low_ms: float | None = None
    high_ms: float | None = None
    peak_gib: float | None = None
    """Memory allocated at the worst moment beyond the inputs, results included."""
    ceiling_frac: float | None = None
    """Share of the measured matmul or copy rate, from the operations or bytes the case must spend."""
    note: str = ""
    """Errors, or why nothing was measured."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a case must spend at least. Example: ``Work("copy", 2 * x.nbytes)`` reads and writes x once."""

    bound: Bound
    amount: float
    """FLOPs or bytes."""


@dataclass(slots=True)
class Bench:
    """Measures on one device until ``deadline_s`` (on the clock of ``time.monotonic``)."""

    device: torch.device
    deadline_s: float
    ceilings: dict[Bound, float] = field(default_factory=dict)
    """FLOP/s and bytes/s, measured first."""
    rows: list[Row] = field(default_factory=list)

    def measure(
        self,
        case: str,
        variant: str,
        run: Callable[[], object],
        work: Work | None = None,
        repeats: int = 5,
        prepare: Callable[[], object] = _nothing,
    ) -> Row:
        """Time ``run`` and keep a row; a failure becomes the row's note, so that the others still run.

        ``prepare`` comes before each run and drops its results, so that gradients neither accumulate nor hide memory.
        """
        self.check_time()
        try:
            row = self._measured(case, variant, run, prepare, work, repeats)
        except Exception as error:
            row = Row(case=case, variant=variant, note=f"{type(error).__name__}: {str(error)[:160]}")
        prepare()
        self.rows.append(row)
        print(_line(row), flush=True)
        self.free()
        return row

    def skip(self, case: str, variant: str, why: str) -> None:
        """Keep a row for a variant that cannot run here."""
        self.rows.append(Row(case=case, variant=variant, note=why))

    def check_time(self) -> None:
        """Raises OutOfTimeError past the deadline."""
        if time.monotonic() > self.deadline_s:
            raise OutOfTimeError

    def free(self) -> None:
        """Drop dead tensors, so that the next peak counts its own only."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _measured(
        self,
        case: str,
        variant: str,
        run: Callable[[], object],
        prepare: Callable[[], object],
        work: Work | None,
        repeats: int,
    ) -> Row:
        def prepared_run() -> None:
            prepare()
            run()

        prepared_run()
        prepare()
        self.free()
        peak_gib = self._peak_gib(run)
        inner = self._inner_runs(self._time_ms(prepared_run, 1))
        times_ms = sorted(self._time_ms(prepared_run, inner) for _ in range(repeats))
        middle = median(times_ms)
        frac = work.amount / (middle * 1e-3) / self.ceilings[work.bound] if work and work.bound in self.ceilings else None
        return Row(
            case=case,
            variant=variant,
            ms=middle,
            low_ms=times_ms[0],
            high_ms=times_ms[-1],
            peak_gib=peak_gib,
            ceiling_frac=frac,
        )

    def _inner_runs(self, probe_ms: float) -> int:
        """Runs per timing: short ones queue up, so that launch latency between them does not count."""
        return 1 if self.device.type != "cuda" else max(1, min(50, int(SHORT_MS / max(probe_ms, 1e-3))))

    def _peak_gib(self, run: Callable[[], object]) -> float | None:
        if self.device.type != "cuda":
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**30

    def _time_ms(self, run: Callable[[], object], inner: int) -> float:
        """Milliseconds of one of ``inner`` runs."""
        if self.device.type != "cuda":
            start = time.perf_counter()
            run()
            return (time.perf_counter() - start) * 1e3
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(inner):
            run()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / inner


def last_line(command: list[str]) -> str:
    """Run a module of this repository in a process of its own; returns the last line of its output.

    Raises RuntimeError where it fails.
    """
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, timeout=PROCESS_LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout.splitlines()[-1]


def commit() -> str:
    """Of this checkout; ``unknown`` outside of one."""
    command = ["git", "-C", str(Path(__file__).resolve().parents[1]), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@contextmanager
def stopped_after(seconds: int) -> Iterator[None]:
    """Raise OutOfTimeError in the main thread after ``seconds``, even inside a long call."""

    def stop(_: int, __: FrameType | None) -> None:
        raise OutOfTimeError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def write_json(path: Path, rows: list[Row], extra: dict[str, object]) -> None:
    """All rows and where they were measured."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    header = {"device": gpu, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), **extra}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**header, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def table(rows: list[Row]) -> str:
    """Rows as Markdown, grouped by case."""
    lines = ["| case | variant | ms | low - high | GiB | of ceiling |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        if row.ms is None:
            lines.append(f"| {row.case} | {row.variant} | {row.note} | | | |")
            continue
        peak = "" if row.peak_gib is None else f"{row.peak_gib:.2f}"
        frac = "" if row.ceiling_frac is None else f"{row.ceiling_frac:.0%}"
        lines.append(f"| {row.case} | {row.variant} | {row.ms:.3f} | {row.low_ms:.3f} - {row.high_ms:.3f} | {peak} | {frac} |")
    return "\n".join(lines)


def _line(row: Row) -> str:
    if row.ms is None:
        return f"  {row.case} | {row.variant}: {row.note}"
    return f"  {row.case} | {row.variant}: {row.ms:.3f} ms"
