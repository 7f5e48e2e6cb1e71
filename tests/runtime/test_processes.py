"""Processes that end with their parent, and how they are told apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from megatron_rl.runtime.processes import start_ticks
from tests.support.processes import is_alive

_CHILD = "import os, time; {call}; print(os.getpid(), flush=True); time.sleep(60)"
_IMPORT = "from megatron_rl.runtime.processes import end_with_parent"


def test_end_with_parent_kills_a_child_whose_parent_is_killed() -> None:
    child = _CHILD.format(call=f"{_IMPORT}; end_with_parent(os.getppid())")
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


def test_end_with_parent_leaves_where_the_parent_is_gone() -> None:
    pid = os.fork()
    if pid == 0:
        from megatron_rl.runtime.processes import end_with_parent

        end_with_parent(parent_pid=1 if os.getppid() != 1 else 2, number=signal.SIGTERM)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_start_ticks_tells_a_process_from_none() -> None:
    started = start_ticks(os.getpid())
    assert started is not None and started == start_ticks(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert start_ticks(child.pid) is None
