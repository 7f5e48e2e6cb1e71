"""Which rank failed first and what it said, from the console log of torchrun and what the ranks left beside it."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path

CONSOLE_LOG = "console.log"
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+) \(local_rank: (\d+)\).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_TAIL_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The rank that failed first. Example: ``RankFailure(rank=1, local_rank=1, exit_code=7)``."""

    rank: int
    local_rank: int
    """Its number on its node; torchrun's folders are named so."""
    exit_code: int
    """Negative = killed by that signal."""

    @property
    def ended(self) -> str:
        """How it ended, in words."""
        return f"exit code {self.exit_code}" if self.exit_code > 0 else f"killed by {signal.Signals(-self.exit_code).name}"

    def explained(self, logs_dir: Path) -> str:
        """Headline, then the rank's traceback, or the last lines of its log where it could not leave one."""
        lines = [f"error: rank {self.rank} failed first ({self.ended}); all output is in {logs_dir}"]
        lines += [f"  rank {self.rank} | {line}" for line in _last_words(self.local_rank, logs_dir)[-20:] if line.strip()]
        return "\n".join(lines)


def first_failure(console: str) -> RankFailure | None:
    """What torchrun's report names as the root cause; None where there is no report."""
    found = _ROOT_CAUSE.search(console)
    return None if found is None else RankFailure(int(found[1]), int(found[2]), int(found[3]))


def failure_line(logs_dir: Path) -> str:
    """One line on why a job ended: the first failing rank, else the last line of all; empty where nothing was left."""
    lines = _tail(logs_dir / CONSOLE_LOG).splitlines()
    return rank_failure_line(logs_dir) or next((line.strip() for line in reversed(lines) if line.strip()), "")


def rank_failure_line(logs_dir: Path) -> str:
    """The first failing rank and its last line; empty where torchrun has reported none."""
    failure = first_failure(_tail(logs_dir / CONSOLE_LOG))
    if failure is None:
        return ""
    said = [line.strip() for line in _last_words(failure.local_rank, logs_dir) if line.strip()]
    return f"rank {failure.rank} ({failure.ended})" + (f": {said[-1]}" if said else "")


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def _last_words(local_rank: int, logs_dir: Path) -> list[str]:
    """From what the worker recorded for torchrun, else from the rank's log; rank 0's is the console itself."""
    folders = sorted(logs_dir.glob(f"*/attempt_*/{local_rank}"), key=lambda path: path.stat().st_mtime)
    if not folders:
        return []
    recorded, log = folders[-1] / "error.json", folders[-1] / "stderr.log"
    if recorded.exists():
        text: str = json.loads(recorded.read_text())["message"]["extraInfo"]["py_callstack"]
        return text.splitlines()
    return log.read_text(errors="replace").splitlines() if log.exists() else []
