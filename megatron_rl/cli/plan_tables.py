"""A reshard plan for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table

from megatron_rl.resharding.grid import GridEntry, describe
from megatron_rl.resharding.placement import spelt_order
from megatron_rl.resharding.report import RankReport, ReshardReport

_PIPE_WIDTH = 118
_MOST_RANKS = 32


def show_report(report: ReshardReport, stream: TextIO) -> None:
    """Print bytes of every rank, then the sums: worst rank, ratio to the bound, rounds, memory and seconds."""
    console = _console(stream)
    console.print(rank_table(report))
    if len(report.ranks) > _MOST_RANKS:
        console.print(f"and {len(report.ranks) - _MOST_RANKS} more ranks (--json lists all)")
    ratio = "as little as possible" if report.bound_ratio == 1.0 else f"{report.bound_ratio:.3f} x the lower bound"
    console.print(
        f"all ranks receive {_gb(report.received_bytes)} GB, {ratio}; the worst rank {_gb(report.max_received_bytes)} GB "
        f"(gather {_gb(report.gather_bytes)}, broadcast {_gb(report.broadcast_bytes)})"
    )
    console.print(
        f"{report.rounds} rounds, at most {report.peak_extra_bytes / 2**20:.0f} MiB extra memory, "
        f"[bold]{report.predicted_seconds * 1e3:.2f} ms[/bold] predicted on {report.fabric}"
    )
    if len(report.order_bytes) > 1:
        orders = ", ".join(f"{name} {_gb(size)}" for name, size in report.order_bytes.items())
        console.print(f"GB received by all ranks, by order: {orders} (permute=false, true, best)")
    if report.rollout.permutation is not None:
        console.print(f"engine shards in order are on ranks {_shortened(report.rollout.permutation)}")
    for whose, layout in (("training", report.train), ("engine", report.rollout)):
        if layout.order is not None:
            console.print(f"{whose} ranks are numbered by {spelt_order(layout.rank_order)}, fastest first")


def _shortened(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_MOST_RANKS])) + (", ..." if len(ranks) > _MOST_RANKS else "")


def rank_table(report: ReshardReport) -> Table:
    """One row per rank, GB."""
    table = Table(title=f"{report.model}: {describe(report.train)} -> {describe(report.rollout)}, GB", title_justify="left")
    names = ("rank", "aliased", "copied", "sent", "received", "bound", "sent off node", "received off node")
    for name in names:
        table.add_column(name, justify="right")
    for rank in report.ranks[:_MOST_RANKS]:
        table.add_row(str(rank.rank), *map(_gb, _row(rank)))
    return table


def _row(rank: RankReport) -> tuple[int, ...]:
    return (
        rank.aliased_bytes,
        rank.copied_bytes,
        rank.sent_bytes,
        rank.received_bytes,
        rank.bound_bytes,
        rank.sent_over_network_bytes,
        rank.received_over_network_bytes,
    )


def show_grid(entries: Sequence[GridEntry], stream: TextIO) -> None:
    """Print one line per pair: the bound, bytes received by all ranks in each order, by gathering and by broadcasting."""
    console = _console(stream)
    table = Table(title="bytes received by all ranks, GB", title_justify="left")
    for name in ("model", "layouts"):
        table.add_column(name)
    for name in ("bound", "run", "natural", "gather", "broadcast", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        ranks = len(entry.natural.ranks)
        columns = (entry.best.bound_bytes, entry.run.received_bytes, entry.natural.received_bytes)
        peers = (entry.natural.gather_bytes * ranks, entry.natural.broadcast_bytes * ranks)
        seconds = f"{entry.run.predicted_seconds * 1e3:.2f}"
        table.add_row(entry.natural.model, entry.label, *map(_gb, (*columns, *peers)), seconds)
    console.print(table)
    reached = {
        name: sum(report.received_bytes == entry.best.bound_bytes for entry in entries for report in [getattr(entry, name)])
        for name in ("natural", "run", "best")
    }
    listed = ", ".join(f"{count} in {name} order" for name, count in reached.items())
    console.print(f"{len(entries)} pairs; exactly the bound receive {listed}")


def _console(stream: TextIO) -> Console:
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False)


def _gb(size: int) -> str:
    return f"{size / 1e9:.3f}"
