"""The terminal of the main rank: a progress bar and one compact row a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("loss", "sft/loss", "7.4f"),
    ("reward", "reward/mean", "7.3f"),
    ("held-out", "val/accuracy/mean", "8.3f"),
    ("gens", "train/num_gen_batches", "5.0f"),
    ("length", "response_length/mean", "7.1f"),
    ("entropy", "actor/entropy", "7.3f"),
    ("kl", "actor/ppo_kl", "9.1e"),
    ("clip", "actor/pg_clipfrac", "6.3f"),
    ("grad", "actor/grad_norm", "8.3f"),
    ("grad", "sft/grad_norm", "8.3f"),
    ("vf_loss", "critic/vf_loss", "8.4f"),
    ("dp_skew", "balance/imbalance", "7.3f"),
    ("s/step", "timing_s/step", "7.2f"),
    ("tok/s", "perf/tokens_per_second", "8.0f"),
)
"""Header, metric and number format of each column; a column without a value in the first rows is left out."""

_ROWS_PER_HEADER = 20


class ConsoleSink:
    """Prints rows, and draws the bar where the output is a terminal."""

    def __init__(self, console: Console | None = None, every: int = 1) -> None:
        """Print every ``every``-th step, and the first, to ``console``; None = standard output."""
        self._console = Console() if console is None else console
        self._every = every
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._rows = 0
        self._seen: set[str] = set()

    @contextmanager
    def progress(self, start: int, total: int) -> Iterator[None]:
        """Draw the bar while the body runs; ``start`` steps are done already."""
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            self._progress = progress
            self._task = progress.add_task("train", total=total, completed=start)
            yield
        self._progress = self._task = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Move the bar, and print one row, under a new header every 20 rows or when a column appears."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step)
        if step % self._every != 0 and self._seen:
            return
        present = {name for _, name, _ in COLUMNS if name in values}
        if self._rows % _ROWS_PER_HEADER == 0 or not present <= self._seen:
            self._seen |= present
            self._rows = 0
            self._print("  ".join([f"{'step':>6}", *[self._header(*column) for column in self._shown()]]), style="bold")
        self._rows += 1
        self._print("  ".join([f"{step:>6}", *[self._cell(values, *column) for column in self._shown()]]))

    def close(self) -> None:
        """Nothing is held open."""

    def _shown(self) -> list[tuple[str, str, str]]:
        return [column for column in COLUMNS if column[1] in self._seen]

    @staticmethod
    def _header(header: str, name: str, number_format: str) -> str:
        return f"{header:>{number_format.split('.')[0]}}"

    @staticmethod
    def _cell(values: Mapping[str, float], header: str, name: str, number_format: str) -> str:
        return f"{values[name]:{number_format}}" if name in values else " " * int(number_format.split(".")[0])

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
