"""The learning curve as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREY = "#1f5fa8", "#d9730d", "#555555"


def plot_learning_curve(records: Sequence[Mapping[str, float | None]], png_path: Path, title: str) -> None:
    """Draw the mean reward, raw and smoothed, and the held-out accuracy of a run.

    Args:
        records: of its steps, those of the attempts it resumed from included.
        png_path: written; its folder exists.
        title: above the figure.
    """
    figure = Figure(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps, rewards = series(records, "reward/mean")
    if steps:
        axes.plot(steps, rewards, color=_BLUE, alpha=0.3, linewidth=1.0, label="reward, step mean")
        axes.plot(steps, smooth(rewards), color=_BLUE, linewidth=2.0, label="reward, smoothed")
    held_steps, accuracies = series(records, "val/accuracy/mean")
    if held_steps:
        axes.plot(held_steps, accuracies, "o--", color=_ORANGE, markersize=5, linewidth=1.0, label="held-out accuracy")
        _annotate_ends(axes, held_steps, accuracies)
    _finish(axes, title)
    figure.savefig(png_path)


def series(records: Sequence[Mapping[str, float | None]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was recorded.

    A validation counts at the step whose weights it tried, ``val/step``: the one before training is in the first record.
    """
    step_name = "val/step" if name.startswith("val/") else "step"
    points = [
        (int(step), value)
        for record in records
        if (step := record.get(step_name, record["step"])) is not None and (value := record.get(name)) is not None
    ]
    return [step for step, _ in points], [value for _, value in points]


def smooth(values: Sequence[float], decay: float = 0.8) -> list[float]:
    """Exponential moving average without a bias towards its start: weights ``decay^age``, normalised."""
    smoothed, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = decay * total + value, decay * weight + 1.0
        smoothed.append(total / weight)
    return smoothed


def _annotate_ends(axes: Axes, steps: Sequence[int], values: Sequence[float]) -> None:
    ends = {0: "left", len(steps) - 1: "right"}
    for i, alignment in ends.items():
        axes.annotate(
            f"{values[i]:.2f}",
            (steps[i], values[i]),
            xytext=(0, 8),
            textcoords="offset points",
            ha=alignment,
            color=_ORANGE,
            weight="bold",
        )


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel("step")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_GREY)
    axes.margins(x=0.02, y=0.1)
    if axes.lines:
        axes.legend(frameon=False, loc="best")
