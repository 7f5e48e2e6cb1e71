"""Running torchrun or srun as a child: its output copied to a log, signals passed on, its failure explained."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

from launchers.failure import first_failure
from megatron_rl.config.rank_contract import EXIT_CODE_REQUEUE, STOPPED_MARK
from megatron_rl.runtime.processes import end_with_parent

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_POLL_S = 0.5
_REPEAT_S = 5.0
"""SIGUSR1 is sent again after so long: ranks that were still loading have not heard the last one."""
_END_WITHIN_S = 10.0
_AGENT_REPORT = re.compile(rb"^E\d{4} [\d:.]+ .*failed \(exitcode", re.MULTILINE)
"""First line of torchrun's own account of a failure: forty lines that go to the log, ours goes to the console."""


@dataclass(frozen=True, slots=True)
class RankStarter:
    """What differs between the programs that start ranks."""

    signal_ranks: Callable[[subprocess.Popen[bytes], signal.Signals], None]
    """Hands a signal to the ranks."""
    explain: Callable[[int, str], tuple[int, str]]
    """Exit code (negative = signal) and last output of the program -> exit code of the job and why, empty if said."""
    overdue: Callable[[], bool]
    """Whether the program has had its time to start the ranks and must end; ``explain`` then says why."""
    orphaned: signal.Signals
    """What the program gets where this process is killed: nobody waits for the ranks any more, and they hold GPUs."""


def torchrun_starter(logs_dir: Path) -> RankStarter:
    """Ranks are torchrun's own children and die with it; its report names the first that failed."""
    return RankStarter(
        _signal_children, lambda code, console: _blame(code, console, logs_dir), lambda: False, orphaned=signal.SIGKILL
    )


def run_supervised(
    command: list[str], environment: Mapping[str, str], logs_dir: Path, starter: RankStarter | None = None
) -> int:
    """Start ``command``, copy its output to the console and to ``console.log``, and wait.

    SIGINT, SIGTERM and SIGUSR1 are handed to the ranks themselves, so that they can save and leave at a step's end. A
    second SIGINT ends the command, a third kills it; the others do nothing more, since batch systems repeat them. The
    child dies with this process.

    Returns:
        0, ``EXIT_CODE_REQUEUE`` where the ranks saved as told, the exit code of the rank that failed first, or 128 +
        signal number.
    """
    chosen = starter or torchrun_starter(logs_dir)
    logs_dir.mkdir(parents=True, exist_ok=True)
    mark = logs_dir / "stopped"
    with (logs_dir / "console.log").open("ab") as log:
        child = subprocess.Popen(
            command,
            env={**environment, STOPPED_MARK: str(mark)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which decides what to pass on
            preexec_fn=partial(_prepare_child, os.getpid(), chosen.orphaned),
        )
        assert child.stdout is not None
        with _forwarding(child, chosen) as received:
            tail = _copy(child, child.stdout, log, chosen)
            code = child.wait()
    if code == 0:
        return EXIT_CODE_REQUEUE if mark.exists() else 0
    code, why = chosen.explain(code, tail)
    if code == 128 + signal.SIGTERM and received[:1] in ([signal.SIGINT], [signal.SIGTERM]):
        code, why = 128 + received[0], f"the ranks were not ready for {received[0].name} yet and ended without saving"
    if why:
        print(why, file=sys.stderr, flush=True)
    return code


def _prepare_child(parent_pid: int, orphaned: signal.Signals) -> None:
    """End with the parent; let nothing that inherits from here be killed by a SIGUSR1 it does not listen to."""
    end_with_parent(parent_pid, orphaned)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


@contextmanager
def _forwarding(child: subprocess.Popen[bytes], starter: RankStarter) -> Iterator[list[signal.Signals]]:
    """Yields the signals received so far, which grows."""
    received: list[signal.Signals] = []
    over = threading.Event()

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number))
        if len(received) == 1:
            _announce(received[0])
            _tell(child, starter, signal.SIGTERM if number == signal.SIGINT else received[0], over)
        elif number == signal.SIGINT:
            (child.terminate if received.count(signal.SIGINT) <= 2 else child.kill)()

    previous = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield received
    finally:
        over.set()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _announce(number: signal.Signals) -> None:
    advice = "; once more to stop now" if number == signal.SIGINT else ""
    print(f"\n{number.name}: the ranks stop after this step{advice}", file=sys.stderr, flush=True)


def _tell(child: subprocess.Popen[bytes], starter: RankStarter, number: signal.Signals, over: threading.Event) -> None:
    """Hand over a signal; SIGUSR1, which harms nobody, again and again until the child has ended."""
    starter.signal_ranks(child, number)

    def repeat() -> None:
        while not over.wait(_REPEAT_S):
            starter.signal_ranks(child, number)

    if number == signal.SIGUSR1:
        threading.Thread(target=repeat, daemon=True).start()


def _signal_children(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal torchrun's own children; torchrun itself would stop them after half a minute, saved or not."""
    ranks = _children(child.pid)
    if not ranks and number != signal.SIGUSR1:
        child.send_signal(number)
    for pid in ranks:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _children(pid: int) -> list[int]:
    listing = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listing.read_text().split()] if listing.exists() else []


def _copy(child: subprocess.Popen[bytes], stream: IO[bytes], log: IO[bytes], starter: RankStarter) -> str:
    """Copy bytes as they come (progress bars have no line ends) until the child is gone; return the last of them."""
    tail: deque[bytes] = deque(maxlen=256)
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
        if starter.overdue():
            _end(child)
            break
    return _text(tail)


def _text(chunks: Iterable[bytes]) -> str:
    return b"".join(chunks).decode(errors="replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _chunks(child: subprocess.Popen[bytes], stream: IO[bytes]) -> Iterator[bytes]:
    """Output of the child, empty now and then; a process it left behind may hold the pipe open, so its own end counts."""
    while True:
        ready, _, _ = select.select([stream], [], [], _POLL_S)
        if ready:
            chunk = os.read(stream.fileno(), 65536)
            if not chunk:
                return
            yield chunk
        elif child.poll() is not None:
            return
        else:
            yield b""


def _blame(code: int, console: str, logs_dir: Path) -> tuple[int, str]:
    failure = first_failure(console)
    if failure is None:
        return (code if code > 0 else 128 - code), ""
    why = "" if failure.exit_code == EXIT_CODE_REQUEUE else failure.explained(logs_dir)
    return (failure.exit_code if failure.exit_code > 0 else 128 - failure.exit_code), why
