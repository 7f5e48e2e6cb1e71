"""Pictures of a sweep: the efficiency curve, and where a step's time goes at each point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from megatron_rl.sweep.point_result import PointResult, Source
from megatron_rl.sweep.tables import SweepResults

_COLOURS = (
    "#0072b2",
    "#e6b400",
    "#6cbbe8",
    "#8c8c8c",
    "#b07aa8",
    "#52a57f",
    "#f0a3a3",
    "#d55e00",
    "#00664d",
    "#5a4a3a",
    "#7a5cc2",
)
_GREY = "#555555"
_LINES: tuple[tuple[Source, str, str], ...] = (("measured", "o-", "measured"), ("model", "s--", "model output, not measured"))


def plot_efficiency(sweep: SweepResults, path: Path) -> None:
    """Efficiency over the number of ranks, the ideal at 100 %; measured and modelled points never share a line."""
    figure, axes = _figure()
    ranks = sorted({result.num_ranks for result in sweep.results})
    axes.axhline(100, color=_GREY, linewidth=0.8, linestyle=":", label="ideal")
    for (source, style, label), colour in zip(_LINES, ("#1f5fa8", "#d9730d"), strict=True):
        points = sorted(
            (result.num_ranks, 100 * sweep.efficiency[source, result.name].efficiency_frac)
            for result in sweep.results
            if result.source == source
        )
        if points:
            axes.plot([x for x, _ in points], [y for _, y in points], style, color=colour, label=label)
        for x, y in points:
            axes.annotate(f"{y:.0f}%", (x, y), (0, 7), textcoords="offset points", ha="center", color=colour, fontsize="small")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.minorticks_off()
    best = max((100 * one.efficiency_frac for one in sweep.efficiency.values()), default=100.0)
    axes.set_ylim(0, 1.12 * max(100.0, best))
    axes.set_xlabel("GPUs, or CPU ranks")
    axes.set_ylabel("tokens/s per rank, % of the smallest point")
    axes.legend(frameon=False, loc="lower left")
    _finish(figure, axes, sweep.title, path)


def plot_phases(sweep: SweepResults, path: Path) -> None:
    """A bar for each point: rank-seconds by phase for a thousand tokens."""
    figure, axes = _figure(width=max(7.2, 1.0 + 0.9 * len(sweep.results)))
    labels = [result.name if result.source == "measured" else f"{result.name}\n(model)" for result in sweep.results]
    bottoms = [0.0] * len(labels)
    small = "the rest"
    for i, phase in enumerate([*sweep.large_phases, small]):
        heights = [_cost(result, {phase} if phase != small else _small_phases(sweep)) for result in sweep.results]
        axes.bar(labels, heights, bottom=bottoms, color=_COLOURS[i % len(_COLOURS)], label=phase, width=0.6)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_ylabel("rank-seconds per 1,000 tokens")
    axes.tick_params(axis="x", labelrotation=30 if _crowded(labels) else 0)
    axes.legend(frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left", fontsize="small")
    _finish(figure, axes, f"{sweep.title}, where the time goes", path)


def _small_phases(sweep: SweepResults) -> set[str]:
    return set(sweep.phases) - set(sweep.large_phases)


def _cost(result: PointResult, phases: set[str]) -> float:
    seconds = sum(result.phase_s.get(phase, 0.0) for phase in phases)
    return seconds * result.num_ranks / result.tokens_per_step * 1000


def _crowded(labels: Sequence[str]) -> bool:
    return sum(map(len, labels)) > 60


def _figure(width: float = 7.2) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, 4.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _finish(figure: Figure, axes: Axes, title: str, path: Path) -> None:
    axes.set_title(title, loc="left")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_GREY)
    figure.savefig(path)
