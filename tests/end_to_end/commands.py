"""Commands as users type them, from a folder that is not the repository, and the processes they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from megatron_rl.rollout.shared_memory import SEGMENTS, _is_leftover

ROOT = Path(__file__).parents[2]
_MARK = "END_TO_END_MARK"
"""Environment variable that every process of one command inherits."""


@dataclass(frozen=True)
class Command:
    """A running command."""

    process: subprocess.Popen[str]
    mark: str
    log: Path

    def finish(self, timeout_s: float = 300.0) -> int:
        """Wait for the end; returns the exit code."""
        return self.process.wait(timeout_s)

    @property
    def output(self) -> str:
        """Both streams so far."""
        return self.log.read_text(errors="replace")

    def processes(self) -> list[int]:
        """Living processes of the command, however far they have detached themselves."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    living = f"{_MARK}={self.mark}".encode() in (folder / "environ").read_bytes()
                    living = living and ") Z " not in (folder / "stat").read_text()
                except OSError:
                    continue
                found += [int(folder.name)] * living
        return found

    def survivors(self, within_s: float = 10.0) -> list[str]:
        """Command lines of processes that are still there after a while."""
        deadline = time.monotonic() + within_s
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        lines = [Path(f"/proc/{pid}/cmdline") for pid in self.processes()]
        return [line.read_bytes().replace(b"\0", b" ").decode() for line in lines if line.exists()]


def start(folder: Path, *arguments: str, module: str = "megatron_rl.cli.main", **environment: str) -> Command:
    """Start ``python -m MODULE ARGUMENTS`` in ``folder``."""
    mark = uuid4().hex
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    log = folder / f"command-{mark}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env={**clean, "PYTHONPATH": str(ROOT), _MARK: mark, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return Command(process, mark, log)


def run(folder: Path, *arguments: str) -> str:
    """Run ``megatron-rl ARGUMENTS`` to its successful end; returns its output."""
    command = start(folder, *arguments)
    assert command.finish() == 0, command.output
    assert not command.survivors()
    return command.output


def abandoned_segments() -> set[str]:
    """Shared-memory segments of engines whose process is gone. Those of other jobs on this host come and go."""
    return {path.name for path in SEGMENTS.iterdir() if _is_leftover(path.name)}
