"""What Linux knows of processes, and does when they end. Elsewhere nothing is known or arranged."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What asks a run to save and end. Slurm sends them to every process of a job's step, not to the ranks alone."""
_PR_SET_PDEATHSIG = 1


def leave_stop_signals_to_ranks() -> None:
    """Have them do nothing in this process, a child of a rank that the rank needs for its last step.

    A handler, since ignoring would be passed on to whatever this process starts.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: None)


def end_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send ``number`` to this process when its parent ends; exit at once where it already has.

    What is arranged outlives ``exec`` and is not passed on to children.

    Args:
        parent_pid: of the parent, known before the call, so that one that ends during it is noticed.
        number: what this process gets.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, which tells it from a later one of the same id; None = unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name, in parentheses, may hold anything; the fixed fields follow its last parenthesis.
    return int(stat.rpartition(")")[2].split()[19])
