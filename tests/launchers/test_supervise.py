from __future__ import annotations

import os
import sys
import time

import pytest

from launchers.supervise import run_supervised


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("code,returned", [("0", 0), ("3", 3)], ids=["success", "failure"])
def test_run_supervised_returns_the_exit_code(code: str, returned: int, tmp_path) -> None:
    assert run_supervised(python(f"raise SystemExit({code})"), os.environ, tmp_path) == returned


def test_run_supervised_turns_a_signal_into_128_and_its_number(tmp_path) -> None:
    assert run_supervised(python("import os; os.kill(os.getpid(), 9)"), os.environ, tmp_path) == 137


def test_run_supervised_copies_output_to_console_and_log(tmp_path, capfdbinary) -> None:
    run_supervised(python("import sys; print('out'); print('err', file=sys.stderr)"), os.environ, tmp_path)
    assert sorted(capfdbinary.readouterr().out.split()) == [b"err", b"out"]
    assert sorted((tmp_path / "console.log").read_text().split()) == ["err", "out"]


def test_run_supervised_does_not_wait_for_what_the_child_left_behind(tmp_path) -> None:
    started = time.monotonic()
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'])"
    assert run_supervised(python(code), os.environ, tmp_path) == 0
    assert time.monotonic() - started < 15
