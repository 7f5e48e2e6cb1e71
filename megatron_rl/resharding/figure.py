"""The figure of bytes against the bound over the grid: ``python -m megatron_rl.resharding.figure OUT.png``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from megatron_rl.config.loading import compose
from megatron_rl.resharding.fabric import H200_NODE
from megatron_rl.resharding.grid import GridEntry, grid_cases, report_case


def draw_grid(entries: Sequence[GridEntry], path: Path) -> None:
    """One row of dots per pair: bytes received per rank under each scheme, and the bound as a bar."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.17 * len(entries)))
    rows = range(len(entries))
    gb = [1e9 * len(entry.natural.ranks) for entry in entries]
    bounds = [entry.permuted.bound_bytes / unit for entry, unit in zip(entries, gb, strict=True)]
    axes.barh(rows, bounds, color="#c9d6e8", label="lower bound")
    series = {
        "planned, permuted": ([entry.permuted.received_bytes for entry in entries], "o", "#1b4f8f"),
        "planned, natural order": ([entry.natural.received_bytes for entry in entries], "|", "#d08020"),
        "gather": ([entry.natural.gather_bytes * len(entry.natural.ranks) for entry in entries], "x", "#888888"),
        "broadcast": ([entry.natural.broadcast_bytes * len(entry.natural.ranks) for entry in entries], ".", "#bb3333"),
    }
    for label, (values, marker, colour) in series.items():
        scaled = [value / unit for value, unit in zip(values, gb, strict=True)]
        axes.scatter(scaled, rows, marker=marker, s=18, color=colour, label=label)
    names = [f"{entry.natural.model.split(' ')[0]}  {entry.label}" for entry in entries]
    axes.set_yticks(rows, names, fontsize=6)
    axes.set_xscale("symlog", linthresh=0.05)
    axes.set_xlim(left=0)
    axes.set_xlabel("GB received per rank, mean (bf16; 0 = nothing moves)")
    axes.invert_yaxis()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1 + 3 / len(entries)), ncols=5, fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


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
