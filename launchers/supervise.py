"""Running torchrun as a child: its output copied to a log, signals passed on, its failure explained."""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
EXIT_CODE_REQUEUE = 85
"""Exit code of ranks that saved because they were told to stop; no failure."""
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5
_AGENT_REPORT = re.compile(rb"^E\d{4} [\d:.]+ .*failed \(exitcode", re.MULTILINE)
"""First line of torchrun's own account of a failure: forty lines that go to the log, ours goes to the console."""
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


def run_supervised(command: list[str], environment: Mapping[str, str], logs_dir: Path) -> int:
    """Start ``command``, copy its output to the console and to ``console.log``, and wait.

    The first SIGINT, SIGTERM or SIGUSR1 is handed to the ranks themselves, so that they can save and leave at a step's
    end; a second one ends torchrun, a third kills it. The child dies with this process.

    Returns:
        0, the exit code of the rank that failed first, or 128 + signal number.
    """
    logs_dir.mkdir(parents=True, exist_ok=True)
    with (logs_dir / "console.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which decides what to pass on
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        assert child.stdout is not None
        with _forwarding(child):
            tail = _copy(child, child.stdout, log)
            code = child.wait()
    return _explained(code, tail, logs_dir)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[None]:
    received = 0

    def forward(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received == 1:
            gentle = signal.SIGTERM if number == signal.SIGINT else signal.Signals(number)
            print(f"\n{signal.Signals(number).name}: the ranks stop after this step; once more to stop now", file=sys.stderr)
            _signal_ranks(child, gentle)
        elif received == 2:
            child.terminate()
        else:
            child.kill()

    previous = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _signal_ranks(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal torchrun's own children; torchrun itself would stop them after half a minute, saved or not."""
    ranks = _children(child.pid)
    if not ranks:
        child.send_signal(signal.SIGTERM)
    for pid in ranks:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _children(pid: int) -> list[int]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listing.read_text().split()] if listing.exists() else []


def _copy(child: subprocess.Popen[bytes], stream: IO[bytes], log: IO[bytes]) -> list[str]:
    """Copy bytes as they come (progress bars have no line ends) until the child is gone; return the last lines."""
    tail: deque[bytes] = deque(maxlen=64)
    shown = True
    for chunk in _chunks(child, stream):
        log.write(chunk)
        log.flush()
        tail.append(chunk)
        report = _AGENT_REPORT.search(chunk)
        if shown:
            sys.stdout.buffer.write(chunk[: report.start()] if report else chunk)
            sys.stdout.buffer.flush()
        shown = shown and report is None
    return b"".join(tail).decode(errors="replace").splitlines()


def _chunks(child: subprocess.Popen[bytes], stream: IO[bytes]) -> Iterator[bytes]:
    """Output of the child; a process it left behind may hold the pipe open, so its own end counts too."""
    while True:
        ready, _, _ = select.select([stream], [], [], _POLL_S)
        if ready:
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                return
            yield chunk
        elif child.poll() is not None:
            return


def _explained(code: int, tail: list[str], logs_dir: Path) -> int:
    if code == 0:
        return 0
    text = "\n".join(tail)
    found = _ROOT_CAUSE.search(text)
    if found is None:
        return code if code > 0 else 128 - code
    rank, rank_code = int(found[1]), int(found[2])
    if rank_code != EXIT_CODE_REQUEUE:
        print(_first_failure(rank, rank_code, logs_dir), file=sys.stderr)
    return rank_code if rank_code > 0 else 128 - rank_code


def _first_failure(rank: int, code: int, logs_dir: Path) -> str:
    """Headline, then the failing rank's traceback, or the last lines of its log where it could not leave one."""
    ended = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
    lines = [f"error: rank {rank} failed first ({ended}); all output is in {logs_dir}"]
    lines += [f"  rank {rank} | {line}" for line in _last_words(rank, logs_dir)[-20:] if line.strip()]
    return "\n".join(lines)


def _last_words(rank: int, logs_dir: Path) -> list[str]:
    """From what the worker recorded for torchrun, else from the rank's log; rank 0's is the console itself."""
    folders = sorted(logs_dir.glob(f"*/attempt_0/{rank}"), key=lambda path: path.stat().st_mtime)
    if not folders:
        return []
    recorded, log = folders[-1] / "error.json", folders[-1] / "stderr.log"
    if recorded.exists():
        text: str = json.loads(recorded.read_text())["message"]["extraInfo"]["py_callstack"]
        return text.splitlines()
    return log.read_text(errors="replace").splitlines() if log.exists() else []
