"""An estimate for the terminal."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.table import Table

from megatron_rl.estimator.cost import CostEstimate, PoolMemory, RankedStrategy

_NUM_REJECTED = 6
_PIPE_WIDTH = 118


def show(answer: CostEstimate, stream: TextIO) -> None:
    """Print memory by phase, seconds by phase, money, ranked strategies and what it all rests on."""
    console = Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False)
    console.print(
        f"[bold]{answer.model}[/bold] ({answer.parameters / 1e9:.2f} B parameters), {answer.algorithm}, on {answer.gpus}"
    )
    console.print(f"[{'green' if answer.fits else 'red'}]{answer.verdict}[/]")
    console.print(f"strategy: {answer.recommended_strategy.label}")
    if answer.recommended_strategy.overrides:
        console.print(f"to run it: {' '.join(answer.recommended_strategy.overrides)}", soft_wrap=True)
    for pool in answer.memory_gib:
        console.print(memory_table(pool))
    console.print(time_table(answer))
    console.print(money_line(answer))
    console.print(strategy_table(answer))
    _list(console, "not possible, or does not fit", [f"{r.label}: {r.reason}" for r in answer.rejected], _NUM_REJECTED)
    _list(console, "assumed", answer.assumptions)
    _list(console, "calibration", answer.calibration)


def memory_table(pool: PoolMemory) -> Table:
    """Parts by phase, GiB, against the card."""
    table = Table(
        title=f"memory of one {pool.gpu}, GiB (of {pool.card_gib:.1f}, {pool.usable_gib:.1f} usable)", title_justify="left"
    )
    table.add_column("part")
    for phase in pool.phases:
        table.add_column(phase, justify="right")
    names = sorted({part for parts in pool.phases.values() for part in parts}, key=_row_order)
    for name in names:
        cells = [f"{parts[name]:.2f}" if name in parts else "" for parts in pool.phases.values()]
        table.add_row(name, *cells)
    totals = [sum(parts.values()) for parts in pool.phases.values()]
    table.add_section()
    table.add_row("total", *(f"[{'red' if total > pool.usable_gib else 'bold'}]{total:.2f}[/]" for total in totals))
    table.add_row("of the card", *(f"{total / pool.card_gib:.0%}" for total in totals))
    return table


def _row_order(name: str) -> tuple[int, str]:
    """Roles in the order of a step, the process first."""
    role = name.split(" ")[0]
    order = ("process", "engine", "actor", "critic", "reference", "all")
    return (order.index(role) if role in order else len(order), name)


def time_table(answer: CostEstimate) -> Table:
    """Seconds of one step by phase, and what takes most of each."""
    table = Table(title="one step", title_justify="left")
    for name in ("phase", "seconds", "share"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    table.add_column("most of it")
    step_s = sum(answer.step_seconds.values())
    for phase, seconds in answer.step_seconds.items():
        parts = [part for part in answer.time_parts if part[0] == phase]
        most = max(parts, key=lambda part: part[3], default=None)
        text = "" if most is None else f"{most[1]} {most[2]} ({most[3]:.2f} s)"
        table.add_row(phase, f"{seconds:.2f}", f"{seconds / step_s:.0%}", text)
    table.add_section()
    spread = f" ± {answer.step_spread_s:.2g}" if answer.step_spread_s else ""
    table.add_row("step", f"[bold]{step_s:.2f}[/bold]{spread}", "", f"weights: {answer.sync}")
    return table


def money_line(answer: CostEstimate) -> str:
    """Epoch, run and bill in one line."""
    prices = ", ".join(f"{card} {price:g}" for card, price in answer.price_per_hour.items())
    kind = "placeholder price" if answer.price_is_assumed else "price"
    return (
        f"{answer.steps_per_epoch} steps an epoch: {answer.time_per_epoch:.2f} h; {answer.total_steps} steps: "
        f"{answer.total_gpu_hours:.1f} GPU hours, [bold]{answer.cost:,.2f} USD[/bold] ({kind} per GPU hour: {prices})"
    )


def strategy_table(answer: CostEstimate) -> Table:
    """Ranked strategies."""
    table = Table(title="strategies, cheapest first", title_justify="left")
    table.add_column("")
    table.add_column("layout", ratio=3)
    for name in ("peak GiB", "s/step", "GPU h", "USD"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("trains")
    table.add_column("why", ratio=4)
    for number, row in enumerate((answer.recommended_strategy, *answer.alternatives), 1):
        table.add_row(str(number), *_cells(row))
    return table


def _cells(row: RankedStrategy) -> tuple[str, ...]:
    peak = f"{row.peak_mem_gib:.1f}" if row.fits else f"[red]{row.peak_mem_gib:.1f}[/red]"
    figures = (peak, f"{row.step_s:.1f}", f"{row.total_gpu_hours:.1f}", f"{row.cost:,.0f}")
    return row.label, *figures, "yes" if row.trainable else "no", row.why


def _list(console: Console, title: str, lines: tuple[str, ...] | list[str], most: int | None = None) -> None:
    if not lines:
        return
    shown = lines if most is None else lines[:most]
    console.print(f"[bold]{title}[/bold]")
    for line in shown:
        console.print(f"  - {line}", markup=False)
    if len(shown) < len(lines):
        console.print(f"  - and {len(lines) - len(shown)} more (--json lists all)")
