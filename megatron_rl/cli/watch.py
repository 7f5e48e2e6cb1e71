"""``megatron-rl watch RUN_DIR [--once]``: a run in the terminal, as it goes on. Ctrl-C ends it with 130."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

from megatron_rl.config.errors import ConfigError
from megatron_rl.report.discovery import explain_no_run, looks_like_run
from megatron_rl.report.frame import frame, waiting_frame
from megatron_rl.report.live_run import LiveRun, Snapshot


def run(argv: list[str]) -> int:
    """Show the run until interrupted, or once.

    Raises:
        ConfigError: the path is no run and will not become one; with ``--once`` also before the first step.
    """
    arguments = _parser().parse_args(argv)
    live, console = LiveRun(arguments.path), Console()
    snapshot = live.refresh()
    if snapshot is None and (arguments.once or not looks_like_run(arguments.path)):
        raise ConfigError([explain_no_run(arguments.path)])
    if arguments.once:
        console.print(_shown(snapshot, live, console))
        return 0
    follow = _follow_on_screen if console.is_terminal else _follow_as_text
    follow(live, console, arguments.interval)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="megatron-rl watch", allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="RUN_DIR")
    parser.add_argument("--once", action="store_true", help="print one frame and stop")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between looks (default 1)")
    return parser


def _follow_on_screen(live: LiveRun, console: Console, interval_s: float) -> NoReturn:
    """Redraw in place until interrupted."""
    with Live(console=console, screen=True, auto_refresh=False) as display:
        while True:
            display.update(_shown(live.refresh(), live, console), refresh=True)
            time.sleep(interval_s)


def _follow_as_text(live: LiveRun, console: Console, interval_s: float) -> NoReturn:
    """Where the output is a file or a pipe: a frame whenever there is a new step."""
    seen: tuple[Path, int] | None = None
    while True:
        snapshot = live.refresh()
        now = None if snapshot is None else (snapshot.run.folder, snapshot.run.last_step)
        if now != seen:
            console.print(_shown(snapshot, live, console))
            seen = now
        time.sleep(interval_s)


def _shown(snapshot: Snapshot | None, live: LiveRun, console: Console) -> RenderableType:
    return waiting_frame(str(live.path)) if snapshot is None else frame(snapshot, console.width)
