"""Reward and held-out accuracy against training time, as one picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from examples.smollm2_arithmetic.records import ACCURACY, RunRecord
from megatron_rl.observability.curves import smooth

_GREY = "#8a8a8a"


def draw_curves(runs: Mapping[str, RunRecord], png_path: Path) -> None:
    """Draw the runs by title, the peer's in grey: mean reward on the left, held-out accuracy on the right."""
    figure = Figure(figsize=(11.0, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    for title, run in runs.items():
        style = {"label": title} if run.framework == "megatron_rl" else {"label": title, "color": _GREY}
        left.plot(
            [row["wall_s"] for row in run.steps], smooth([row["reward/mean"] for row in run.steps]), linewidth=1.6, **style
        )
        held = run.validations
        right.plot(
            [row["wall_s"] for row in held], [row[ACCURACY] for row in held], "o-", markersize=3.5, linewidth=1.4, **style
        )
    _finish(left, "mean reward of training batches, smoothed")
    _finish(right, "held-out accuracy, greedy, 512 questions")
    right.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(png_path)


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("seconds of training")
    axes.set_ylim(0.0, 1.0)
    axes.set_xlim(left=0.0)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
