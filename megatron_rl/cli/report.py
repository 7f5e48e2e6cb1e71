"""``megatron-rl report RUN_OR_SWEEP_DIR [RUN_DIR ...] [--out FILE]``: one self-contained HTML file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from megatron_rl.config.atomic_files import write_atomically
from megatron_rl.config.errors import ConfigError
from megatron_rl.report.discovery import find_runs
from megatron_rl.report.page import render_page
from megatron_rl.report.run import Run, read_run

REPORT_FILE = "report.html"


def run(argv: list[str]) -> int:
    """Write the report and say where it is.

    Raises:
        ConfigError: a path holds no metrics, or the file cannot be written.
    """
    arguments = _parser().parse_args(argv)
    found = find_runs(arguments.paths)
    runs = [read_run(label, folder) for label, folder in found.folders.items()]
    out = _out_path(arguments.out, arguments.paths)
    _write(out, render_page(_with_steps(runs), found.without_metrics))
    what = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    print(f"{out}: {what}, {out.stat().st_size / 1000:,.0f} kB; opens in any browser, without a network")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="megatron-rl report", allow_abbrev=False)
    parser.add_argument("paths", nargs="+", type=Path, metavar="RUN_OR_SWEEP_DIR")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: report.html in the first folder")
    return parser


def _with_steps(runs: Sequence[Run]) -> list[Run]:
    """Runs with a readable record."""
    kept = [run for run in runs if run.records]
    if not kept:
        folders = ", ".join(str(run.folder) for run in runs)
        raise ConfigError([f"{folders}: metrics.jsonl holds no finished step"])
    return kept


def _out_path(out: Path | None, paths: Sequence[Path]) -> Path:
    if out is None:
        first = paths[0]
        return (first if first.is_dir() else first.parent) / REPORT_FILE
    return out / REPORT_FILE if out.is_dir() else out


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as failure:
        raise ConfigError([f"--out {path}: cannot write the report: {failure}"]) from None
