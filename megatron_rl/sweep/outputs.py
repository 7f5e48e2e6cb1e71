"""The files that a sweep leaves in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from megatron_rl.config.atomic_files import write_atomically
from megatron_rl.sweep.figures import plot_efficiency, plot_phases
from megatron_rl.sweep.page import render_sweep
from megatron_rl.sweep.tables import SweepResults, csv_text, json_content

CSV, JSON, HTML, EFFICIENCY_PNG, PHASES_PNG = "results.csv", "results.json", "results.html", "efficiency.png", "phases.png"


def write_outputs(folder: Path, sweep: SweepResults, more: str = "") -> list[Path]:
    """Write tables, pictures and the page; returns their paths. ``more``: see :func:`render_sweep`."""
    pictures = []
    if sweep.results:
        plot_phases(sweep, folder / PHASES_PNG)
        pictures.append(("Rank-seconds by phase for a thousand tokens, one bar a point", folder / PHASES_PNG))
    if sweep.efficiency:
        plot_efficiency(sweep, folder / EFFICIENCY_PNG)
        pictures.insert(0, ("Scaling efficiency over the number of ranks", folder / EFFICIENCY_PNG))
    texts = {
        CSV: csv_text(sweep),
        JSON: json.dumps(json_content(sweep), indent=1, ensure_ascii=False) + "\n",
        HTML: render_sweep(sweep, pictures, more),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text)
    return [folder / name for name in texts] + [path for _, path in pictures]
