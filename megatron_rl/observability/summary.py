"""The table at the end of a run, from its ``metrics.jsonl`` alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from megatron_rl.observability.curves import series
from megatron_rl.observability.sinks import Record, read_metrics

_WINDOW = 5
_NOT_PHASES = ("timing_s/step", "timing_s/testing")


def print_summary(metrics_path: Path, console: Console | None = None) -> None:
    """Print the summary of a run to ``console``; None = standard output."""
    (Console() if console is None else console).print(summary_table(read_metrics(metrics_path), title=str(metrics_path.parent)))


def summary_table(records: Sequence[Record], title: str) -> Table:
    """Rewards first and last, step time by phase, tokens per second, bytes moved against their bound."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in [*_learning_rows(records), *_time_rows(records), *_speed_rows(records), *_sync_rows(records)]:
        table.add_row(*row)
    return table


def mean_of(records: Sequence[Record], name: str) -> float | None:
    """Mean over the steps that recorded ``name``; None without any."""
    _, values = series(records, name)
    return sum(values) / len(values) if values else None


Row = tuple[str, str, str]


def _learning_rows(records: Sequence[Record]) -> list[Row]:
    rows: list[Row] = []
    steps, rewards = series(records, "reward/mean")
    if rewards:
        first, last = rewards[:_WINDOW], rewards[-_WINDOW:]
        first_mean, last_mean = sum(first) / len(first), sum(last) / len(last)
        rows.append((f"reward, first {len(first)} steps", f"{first_mean:.3f}", ""))
        rows.append((f"reward, last {len(last)} steps", f"{last_mean:.3f}", f"{last_mean - first_mean:+.3f}"))
    steps, accuracies = series(records, "val/accuracy/mean")
    if accuracies:
        rows.append((f"held-out accuracy, step {steps[0]}", f"{accuracies[0]:.3f}", ""))
        rows.append((f"held-out accuracy, step {steps[-1]}", f"{accuracies[-1]:.3f}", f"{accuracies[-1] - accuracies[0]:+.3f}"))
    return rows


def _time_rows(records: Sequence[Record]) -> list[Row]:
    step_s = mean_of(records, "timing_s/step")
    if not step_s:
        return []
    num_steps = len(series(records, "timing_s/step")[0])
    totals = {
        name: sum(series(records, name)[1])
        for name in dict.fromkeys(name for record in records for name in record if name.startswith("timing_s/"))
        if name not in _NOT_PHASES
    }
    rows: list[Row] = [("step time", f"{step_s:.2f} s", f"mean of {num_steps} steps")]
    for name, total in sorted(totals.items(), key=lambda item: -item[1]):
        seconds = total / num_steps
        rows.append((f"  {name.removeprefix('timing_s/')}", f"{seconds:.2f} s", f"{seconds / step_s:.0%}"))
    return rows


def _speed_rows(records: Sequence[Record]) -> list[Row]:
    labels = (
        ("perf/tokens_per_second", "tokens/s", "prompt + response, whole job"),
        ("perf/actor_generate_tokens_per_second", "generated tokens/s", "while generating"),
    )
    means = [(label, mean_of(records, name), note) for name, label, note in labels]
    return [(label, f"{value:,.0f}", note) for label, value, note in means if value is not None]


def _sync_rows(records: Sequence[Record]) -> list[Row]:
    received = mean_of(records, "sync/bytes_received")
    if received is None:
        return []
    ratio = mean_of(records, "sync/bound_ratio")
    note = "" if ratio is None else f"{ratio:.2f}x the lower bound"
    return [("weights received per sync", f"{received / 2**20:,.2f} MiB", note)]
