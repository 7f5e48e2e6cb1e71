"""Ending with the parent process, however that ends. Needs Linux; elsewhere nothing is arranged."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


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
