"""The figure of bytes against the bound over the grid: ``python -m megatron_rl.resharding.figure OUT.png``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_rl.config.loading import compose
from megatron_rl.resharding.fabric import H200_NODE
from megatron_rl.resharding.grid import GridEntry, grid_cases, report_case

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SERIES = {
    "order of a run": ("o", "#1b4f8f"),
    "natural order": ("|", "#d08020"),
    "gather": ("x", "#888888"),
    "broadcast": (".", "#bb3333"),
}


def draw_grid(entries: Sequence[GridEntry], path: Path) -> None:
    """A panel per model, a row per pair: GB received per rank under each scheme, and the bound as a bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(entry.natural.model for entry in entries))
    columns = min(2, len(models))
    panels = [[entry for entry in entries if entry.natural.model == model] for model in models]
    lines = -(-len(panels) // columns)
    heights = [max(len(panel) for panel in panels[line * columns : (line + 1) * columns]) for line in range(lines)]
    size = (7.5 * columns, 1.5 * lines + 0.13 * sum(heights))
    figure, grid = pyplot.subplots(lines, columns, figsize=size, squeeze=False, height_ratios=heights)
    for axes, panel, model in zip(grid.flat, panels, models, strict=False):
        _draw_panel(axes, panel, model)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    grid[0][0].legend(loc="lower left", bbox_to_anchor=(0, 1.02 + 1 / heights[0]), ncols=5, fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _draw_panel(axes: Axes, panel: Sequence[GridEntry], model: str) -> None:
    rows = list(range(len(panel)))
    axes.barh(rows, [_gb(entry, entry.best.bound_bytes) for entry in panel], color="#c9d6e8", label="lower bound")
    values = {
        "order of a run": [entry.run.received_bytes for entry in panel],
        "natural order": [entry.natural.received_bytes for entry in panel],
        "gather": [entry.natural.gather_bytes * len(entry.natural.ranks) for entry in panel],
        "broadcast": [entry.natural.broadcast_bytes * len(entry.natural.ranks) for entry in panel],
    }
    for label, sizes in values.items():
        marker, colour = SERIES[label]
        scaled = [_gb(entry, size) for entry, size in zip(panel, sizes, strict=True)]
        axes.scatter(scaled, rows, marker=marker, s=18, color=colour, label=label, clip_on=False)
    axes.set_yticks(rows, [entry.label for entry in panel], fontsize=6)
    axes.set_xscale("symlog", linthresh=0.05)
    axes.set_xlim(left=0)
    axes.set_ylim(len(panel) - 0.5, -0.5)
    axes.set_title(f"{model}: GB received per rank, mean over {len(panel[0].natural.ranks)} ranks, bf16", fontsize=8)


def _gb(entry: GridEntry, size: int) -> float:
    """Mean over the ranks."""
    return size / 1e9 / len(entry.natural.ranks)


def main(argv: Sequence[str]) -> int:
    """Draw the whole grid into the file named."""
    if len(argv) != 1:
        print("usage: python -m megatron_rl.resharding.figure OUT.png", file=sys.stderr)
        return 2
    cases = grid_cases(lambda name: compose([f"model={name}"]).model)
    draw_grid([report_case(case, H200_NODE) for case in cases], Path(argv[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
