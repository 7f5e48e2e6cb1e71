"""A sweep's results as rows: for the terminal, for ``results.csv`` and for ``results.json``."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megatron_rl.sweep.efficiency import Efficiency
from megatron_rl.sweep.point_result import PointResult, UnfinishedPoint

Cell = str | float | int | None
NEGLIGIBLE_SHARE = 0.01
"""A phase below it at every point is left out of pictures and of the tables for people."""
ROUNDING_DIGITS = 6
"""Significant digits of what is written to files."""


@dataclass(frozen=True)
class SweepResults:
    """Everything that the outputs show."""

    title: str
    results: Sequence[PointResult]
    efficiency: Mapping[tuple[str, str], Efficiency]
    """(source, name) -> comparison with the smallest point; empty for a grid."""
    unfinished: Sequence[UnfinishedPoint]
    warmup_steps: int

    @property
    def phases(self) -> list[str]:
        """Phases of all points, those of the first point first."""
        return list(dict.fromkeys(phase for result in self.results for phase in result.phase_s))

    @property
    def large_phases(self) -> list[str]:
        """Those with at least ``NEGLIGIBLE_SHARE`` of some point's step, longest first."""
        share = {phase: max(r.phase_s.get(phase, 0.0) / r.step_s for r in self.results) for phase in self.phases}
        return [phase for phase in sorted(share, key=lambda name: -share[name]) if share[phase] >= NEGLIGIBLE_SHARE]


def flat_row(sweep: SweepResults, result: PointResult) -> dict[str, Cell]:
    """One row of ``results.csv``; the same columns for every point of the sweep."""
    own = sweep.efficiency.get((result.source, result.name))
    blame = None if own is None else own.blame
    row: dict[str, Cell] = {
        "point": result.name,
        "source": result.source,
        **result.settings,
        "ranks": result.num_ranks,
        "measured_steps": result.num_steps,
        "steps_per_s": result.steps_per_s,
        "step_s_mean": result.step_s,
        "step_s_std": result.step_std_s,
        "tokens_per_step": result.tokens_per_step,
        "tokens_per_s": result.tokens_per_s,
        "tokens_per_s_per_rank": result.tokens_per_s / result.num_ranks,
    }
    if sweep.efficiency:
        row |= {
            "speedup": None if own is None else own.speedup,
            "efficiency_frac": None if own is None else own.efficiency_frac,
            "phase_to_blame": None if blame is None else blame.phase,
            "blamed_share_before": None if blame is None else blame.share_before,
            "blamed_share_now": None if blame is None else blame.share_now,
            "blamed_frac_of_loss": None if blame is None else blame.loss_frac,
        }
    for phase in sweep.phases:
        seconds = result.phase_s.get(phase)
        row[f"{phase}_s_mean"] = seconds
        row[f"{phase}_s_std"] = result.phase_std_s.get(phase)
        row[f"{phase}_frac"] = None if seconds is None else seconds / result.step_s
    row |= {
        "peak_memory_gib": result.peak_gib,
        "reward": result.reward,
        "gpu_hours": result.gpu_hours,
        "cost_usd": result.cost_usd,
        "usd_per_million_tokens": result.usd_per_million_tokens,
        "note": result.note,
    }
    return {name: _rounded(cell) for name, cell in row.items()}


def csv_text(sweep: SweepResults) -> str:
    """``results.csv``; a cell without a value is empty."""
    rows = [flat_row(sweep, result) for result in sweep.results]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_content(sweep: SweepResults) -> dict[str, Any]:
    """``results.json``: the rows, memory by phase, and the points without a result."""
    return {
        "title": sweep.title,
        "warmup_steps": sweep.warmup_steps,
        "units": {"_s": "seconds", "_gib": "GiB", "_frac": "share", "_usd": "USD", "gpu_hours": "hours of one rank's device"},
        "points": [
            flat_row(sweep, result) | {"memory_gib_by_phase": {k: _rounded(v) for k, v in result.memory_gib.items()}}
            for result in sweep.results
        ],
        "unfinished": [
            {"point": one.name, "state": one.state, "reason": one.reason, "run_dir": one.run_dir} for one in sweep.unfinished
        ],
    }


def shown_columns(sweep: SweepResults) -> list[str]:
    """Headers of the table for people."""
    headers = ["point", "source", "ranks", "steps/s", "tokens/s", "s/step"]
    headers += ["efficiency", "phase to blame"] if sweep.efficiency else ["reward"]
    headers.append("peak GiB")
    return headers + (["USD", "USD / M tokens"] if any(r.price_per_hour is not None for r in sweep.results) else [])


def shown_row(sweep: SweepResults, result: PointResult) -> list[str]:
    """One row of the table for people."""
    own = sweep.efficiency.get((result.source, result.name))
    spread = "" if result.step_std_s is None else f" ± {result.step_std_s:.2g}"
    row = [
        result.name,
        result.source,
        str(result.num_ranks),
        f"{result.steps_per_s:.3g}",
        f"{result.tokens_per_s:,.0f}",
        f"{result.step_s:.3g}{spread}",
    ]
    if sweep.efficiency:
        row += ["—" if own is None else f"{own.efficiency_frac:.0%}", _blamed(own)]
    else:
        row.append("—" if result.reward is None else f"{result.reward:.3g}")
    row.append("—" if result.peak_gib is None else f"{result.peak_gib:.3g}")
    if "USD" in shown_columns(sweep):
        row += [_money(result.cost_usd), _money(result.usd_per_million_tokens)]
    return row


def phase_columns(sweep: SweepResults) -> list[str]:
    """Headers of the table of phases: one column a point."""
    return ["phase", *(result.name if result.source == "measured" else f"{result.name} (model)" for result in sweep.results)]


def phase_rows(sweep: SweepResults) -> list[list[str]]:
    """One row a phase: mean, spread and share at each point."""
    return [[phase, *(_phase_cell(result, phase) for result in sweep.results)] for phase in sweep.large_phases]


def _phase_cell(result: PointResult, phase: str) -> str:
    seconds, std = result.phase_s.get(phase), result.phase_std_s.get(phase)
    if seconds is None:
        return "—"
    return f"{seconds:.3g}{'' if std is None else f' ± {std:.2g}'} s, {seconds / result.step_s:.0%}"


def _blamed(own: Efficiency | None) -> str:
    if own is None or own.blame is None:
        return "—"
    blame = own.blame
    return f"{blame.phase} ({blame.share_before:.0%} -> {blame.share_now:.0%})"


def _money(usd: float | None) -> str:
    return "—" if usd is None else f"{usd:.3g}"


def _rounded(cell: Cell) -> Cell:
    return float(f"{cell:.{ROUNDING_DIGITS}g}") if isinstance(cell, float) else cell
