"""The bootstrap script, with interpreters made up for the test."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the bootstrap reads, without an environment."""
    shutil.copytree(ROOT / "requirements", tmp_path / "repo" / "requirements")
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "repo" / name)
    return tmp_path / "repo"


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def bootstrap(checkout: Path, tools: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run with a PATH of the made-up tools and the plain system commands the script needs."""
    for command in (
        "bash",
        "cat",
        "cksum",
        "cut",
        "df",
        "du",
        "dirname",
        "ls",
        "mkdir",
        "rm",
        "sleep",
        "sort",
        "tail",
        "tr",
        "uname",
    ):
        link, target = tools / command, shutil.which(command)
        if target and not link.exists():
            tools.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
    return subprocess.run(
        ["bash", str(checkout / "requirements" / "bootstrap.sh")],
        env={"PATH": str(tools), "HOME": str(tools), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def has_system_python_3_12() -> bool:
    places = [Path("/usr/local/bin/python3.12"), Path("/usr/bin/python3.12"), *Path("/opt").glob("*/bin/python3.12")]
    return any(place.exists() for place in places)


@pytest.mark.skipif(has_system_python_3_12(), reason="this host has a Python 3.12 outside PATH")
def test_bootstrap_rejects_a_failing_shim_and_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    executable(tmp_path / "tools" / "python3.12", "echo 'no such version' >&2; exit 127")
    done = bootstrap(checkout, tmp_path / "tools")
    assert done.returncode == 1
    assert "no working Python 3.12" in done.stderr
    assert "pyenv install 3.12" in done.stderr


def test_bootstrap_rejects_unknown_engine(checkout: Path, tmp_path: Path) -> None:
    done = bootstrap(checkout, tmp_path / "tools", ENGINE="tpu")
    assert done.returncode == 2
    assert "ENGINE=tpu is unknown; use cpu or gpu" in done.stderr


def test_bootstrap_installs_once_and_again_only_when_requirements_change(checkout: Path, tmp_path: Path) -> None:
    """A made-up Python whose ``-m venv`` makes a made-up environment; pip calls are recorded, nothing is installed."""
    calls = tmp_path / "calls"
    fake = (
        f'echo "$*" >> {calls}\n'
        'if [ "$1" = -m ] && [ "$2" = venv ]; then mkdir -p "$3/bin"; cat "$0" > "$3/bin/python"; '
        f'{shutil.which("chmod")} +x "$3/bin/python"; fi'
    )
    python = executable(tmp_path / "tools" / "python3.12", fake)
    assert python.exists()
    first = bootstrap(checkout, tmp_path / "tools", ENGINE="cpu")
    assert first.returncode == 0, first.stderr
    installs = [line for line in calls.read_text().splitlines() if "pip install" in line]
    assert [("--no-deps" in line, "--editable ." in line) for line in installs] == [
        (False, False),
        (False, False),
        (True, False),
        (True, True),
    ]
    assert "setup: 1/4" in first.stdout

    calls.write_text("")
    second = bootstrap(checkout, tmp_path / "tools", ENGINE="cpu")
    assert (second.returncode, second.stdout, calls.read_text()) == (0, "", "")

    (checkout / "requirements" / "dev.txt").write_text("pytest\n")
    third = bootstrap(checkout, tmp_path / "tools", ENGINE="cpu")
    assert "setup: done" in third.stdout


def test_bootstrap_failure_leaves_no_stamp(checkout: Path, tmp_path: Path) -> None:
    fake = (
        'if [ "$1" = -m ] && [ "$2" = venv ]; then mkdir -p "$3/bin"; cat "$0" > "$3/bin/python"; '
        f'{shutil.which("chmod")} +x "$3/bin/python"; fi\n'
        'if [ "$2" = pip ]; then echo "no space left" >&2; exit 1; fi'
    )
    executable(tmp_path / "tools" / "python3.12", fake)
    done = bootstrap(checkout, tmp_path / "tools", ENGINE="cpu")
    assert done.returncode != 0
    assert "no space left" in done.stderr
    assert "rm -rf .venv && make setup" in done.stderr
    assert not os.path.exists(checkout / ".venv" / ".setup-stamp")
