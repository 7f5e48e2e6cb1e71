"""Running torchrun as a child: its output copied to a log, signals passed on, its failure explained."""

from __future__ import annotations

import ctypes
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

from launchers.failure import first_failure

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
EXIT_CODE_REQUEUE = 85
"""Exit code of ranks that saved because they were told to stop; no failure."""
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5
_AGENT_REPORT = re.compile(rb"^E\d{4} [\d:.]+ .*failed \(exitcode", re.MULTILINE)
"""First line of torchrun's own account of a failure: forty lines that go to the log, ours goes to the console."""


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
    failure = first_failure("\n".join(tail))
    if failure is None:
        return code if code > 0 else 128 - code
    if failure.exit_code != EXIT_CODE_REQUEUE:
        print(failure.explained(logs_dir), file=sys.stderr)
    return failure.exit_code if failure.exit_code > 0 else 128 - failure.exit_code
