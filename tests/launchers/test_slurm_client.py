from __future__ import annotations

from pathlib import Path

import pytest

from launchers.slurm_client import client_problem, jobs_of_script
from megatron_rl.config.cluster import LauncherConfig


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH for stand-ins of Slurm's commands."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stand_in(tmp_path / "sbatch", "exit 0")
    return tmp_path


def stand_in(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def test_client_problem_is_one_line_where_no_cluster_answers(client: Path) -> None:
    stand_in(client / "sinfo", "echo 'sinfo: error: lookup failed' >&2; echo 'sinfo: fatal: no configuration' >&2; exit 1")
    problem = client_problem(LauncherConfig(name="slurm"))
    assert problem is not None and problem.startswith("launcher=slurm: no cluster answers this machine (sinfo: fatal: no conf")
    assert "\n" not in problem


def test_client_problem_names_the_nearest_partition(client: Path) -> None:
    stand_in(client / "sinfo", "printf 'gpu\\nspare\\n'")
    assert client_problem(LauncherConfig(name="slurm", partition="gpu")) is None
    assert "did you mean gpu?" in str(client_problem(LauncherConfig(name="slurm", partition="gpus")))


def test_jobs_of_script_finds_those_of_the_same_file_alone(client: Path) -> None:
    stand_in(client / "squeue", "printf '7|/a/train.sbatch\\n8|/b/train.sbatch\\n9|/a/train.sbatch\\n'")
    assert jobs_of_script(Path("/a/train.sbatch")) == ["7", "9"]
    stand_in(client / "squeue", "echo 'no controller' >&2; exit 1")
    assert jobs_of_script(Path("/a/train.sbatch")) == []
