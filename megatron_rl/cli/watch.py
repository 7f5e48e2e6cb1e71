"""``megatron-rl watch RUN_DIR [--once]``: a run in the terminal, as it goes on, until it is over. Ctrl-C ends it with 130."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live

from launchers.failure import rank_failure_line
from megatron_rl.config.errors import ConfigError
from megatron_rl.report.discovery import explain_no_run, looks_like_run
from megatron_rl.report.frame import frame, waiting_frame
from megatron_rl.report.live_run import LiveRun, Snapshot


def run(argv: list[str]) -> int:
    """Show the run until it is over or the user has seen enough, or once.

    Returns:
        0 for a run that has reached its last step, 1 for one of which a rank has failed.

    Raises:
        ConfigError: the path is no run and will not become one; with ``--once`` also before the first step.
    """
    arguments = _parser().parse_args(argv)
    live, console = LiveRun(arguments.path), Console()
    view = _look(live)
    if view.snapshot is None and view.failure:
        raise ConfigError([f"{live.attempt}: failed before its first step: {view.failure}"])
    if view.snapshot is None and (arguments.once or not looks_like_run(arguments.path)):
        raise ConfigError([explain_no_run(arguments.path)])
    if arguments.once:
        console.print(view.shown(console))
        return 0
    follow = _follow_on_screen if console.is_terminal else _follow_as_text
    return follow(live, console, arguments.interval)


@dataclass(frozen=True)
class _View:
    """What there is to see at one moment."""

    path: Path
    snapshot: Snapshot | None
    failure: str

    @property
    def exit_code(self) -> int | None:
        """Of a run that is over; None while it may go on."""
        if self.failure:
            return 1
        finished = self.snapshot is not None and not self.snapshot.waiting and self.snapshot.run.state == "finished"
        return 0 if finished else None

    def shown(self, console: Console) -> RenderableType:
        """The frame."""
        if self.snapshot is None:
            return waiting_frame(str(self.path))
        return frame(self.snapshot, console.width, self.failure)


def _look(live: LiveRun) -> _View:
    return _View(live.path, live.refresh(), rank_failure_line(live.attempt / "logs"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="megatron-rl watch", allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="RUN_DIR")
    parser.add_argument("--once", action="store_true", help="print one frame and stop")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between looks (default 1)")
    return parser


def _follow_on_screen(live: LiveRun, console: Console, interval_s: float) -> int:
    """Redraw in place until the run is over; its last frame stays."""
    with Live(console=console, screen=True, auto_refresh=False) as display:
        while (view := _look(live)).exit_code is None:
            display.update(view.shown(console), refresh=True)
            time.sleep(interval_s)
    console.print(view.shown(console))
    return view.exit_code


def _follow_as_text(live: LiveRun, console: Console, interval_s: float) -> int:
    """Where the output is a file or a pipe: a frame whenever there is a new step."""
    seen: tuple[Path, int] | None = None
    first = True
    while True:
        view = _look(live)
        now = None if view.snapshot is None else (view.snapshot.run.folder, view.snapshot.run.last_step)
        if first or now != seen or view.exit_code is not None:
            console.print(view.shown(console))
        if view.exit_code is not None:
            return view.exit_code
        seen, first = now, False
        time.sleep(interval_s)
