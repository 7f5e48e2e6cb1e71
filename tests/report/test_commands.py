from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_rl.cli.main import main
from tests.report.run_folders import REAL, copy_real, write_jsonl, write_run

INTERRUPTIBLE = """
import signal, sys
from megatron_rl.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may pass on that it ignores it
sys.exit(main(sys.argv[1:]))
"""


def test_report_writes_one_file_beside_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copy_real(tmp_path / "run")
    assert main(["report", str(folder)]) == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert list(folder.glob("*.partial")) == []


def test_report_writes_where_out_says(tmp_path: Path) -> None:
    assert main(["report", str(REAL), "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert main(["report", str(REAL), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "new" / "page.html").exists() and (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("records", "out", "message"),
    [([{"step": 1}], "file/page.html", "cannot write the report"), ([], "page.html", "holds no finished step")],
    ids=["out-below-a-file", "empty-metrics"],
)
def test_report_rejects_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], records: list[dict[str, object]], out: str, message: str
) -> None:
    (tmp_path / "file").write_text("")
    folder = write_run(tmp_path / "x", records)
    assert main(["report", str(folder), "--out", str(tmp_path / out)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "watch"])
def test_commands_reject_a_folder_without_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    write_run(tmp_path / "project" / "grpo" / "run", [{"step": 1}])
    assert main([command, str(tmp_path)]) == 2
    text = capsys.readouterr().err
    assert f"{tmp_path / 'metrics.jsonl'} is missing" in text
    assert str(tmp_path / "project" / "grpo" / "run") in text


def test_watch_once_prints_one_frame(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(REAL), "--once"]) == 0
    assert capsys.readouterr().out.count("step 13 of 13") == 1


def test_watch_ends_with_a_run_that_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "x", [{"step": 1}, {"step": 2}], trainer__total_training_steps=2)
    assert main(["watch", str(folder)]) == 0
    assert capsys.readouterr().out.count("finished") == 1


FAILED = """Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 7 (pid: 4242)
"""


def test_watch_says_why_a_run_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "x", [{"step": 1}], trainer__total_training_steps=2)
    (folder / "logs").mkdir()
    (folder / "logs" / "console.log").write_text(FAILED)
    assert main(["watch", str(folder)]) == 1
    assert "failed: rank 1 (exit code 7)" in capsys.readouterr().out
    write_jsonl(folder / "metrics.jsonl", [])
    assert main(["watch", str(folder)]) == 2
    assert "failed before its first step: rank 1 (exit code 7)" in capsys.readouterr().err


def test_watch_shows_new_steps_until_interrupted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", [{"step": 1, "reward/mean": 0.25}])  # of how many is not known, so it never ends
    command = [sys.executable, "-c", INTERRUPTIBLE, "watch", str(folder), "--interval", "0.1"]
    output = tmp_path / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "COLUMNS": "100"})
        try:
            wait_for(output, "step 1")
            write_jsonl(folder / "metrics.jsonl", [{"step": 1, "reward/mean": 0.25}, {"step": 2, "reward/mean": 0.75}])
            wait_for(output, "0.75")
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=10) == 130
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in output.read_text()


def wait_for(path: Path, text: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.05)
