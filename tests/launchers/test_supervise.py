from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from launchers.supervise import run_supervised
from tests.support.processes import is_alive


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("code,returned", [("0", 0), ("3", 3)], ids=["success", "failure"])
def test_run_supervised_returns_the_exit_code(code: str, returned: int, tmp_path) -> None:
    assert run_supervised(python(f"raise SystemExit({code})"), os.environ, tmp_path) == returned


def test_run_supervised_turns_a_signal_into_128_and_its_number(tmp_path) -> None:
    assert run_supervised(python("import os; os.kill(os.getpid(), 9)"), os.environ, tmp_path) == 137


def test_run_supervised_says_when_ranks_could_not_save(tmp_path, capfd) -> None:
    """Ctrl-C while they load: no traceback, no rank to blame, and the code of an interruption."""
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(30)"
    assert run_supervised(python(code), os.environ, tmp_path) == 130
    assert "the ranks were not ready for SIGINT yet and ended without saving" in capfd.readouterr().err


def test_run_supervised_copies_output_to_console_and_log(tmp_path, capfdbinary) -> None:
    run_supervised(python("import sys; print('out'); print('err', file=sys.stderr)"), os.environ, tmp_path)
    assert sorted(capfdbinary.readouterr().out.split()) == [b"err", b"out"]
    assert sorted((tmp_path / "console.log").read_text().split()) == ["err", "out"]


def test_run_supervised_does_not_wait_for_what_the_child_left_behind(tmp_path) -> None:
    started = time.monotonic()
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'])"
    assert run_supervised(python(code), os.environ, tmp_path) == 0
    assert time.monotonic() - started < 15


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_run_supervised_killed_takes_a_child_with_it_that_hears_no_signal(tmp_path) -> None:
    deaf = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(60)"
    )
    supervisor = subprocess.Popen(
        python(
            "import os, pathlib, sys; from launchers.supervise import run_supervised; "
            f"run_supervised([sys.executable, '-c', {deaf!r}], os.environ, pathlib.Path({str(tmp_path)!r}))"
        ),
        stdout=subprocess.PIPE,
    )
    assert supervisor.stdout is not None
    child = int(supervisor.stdout.readline())
    supervisor.kill()
    deadline = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.05)
