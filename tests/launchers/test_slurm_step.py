"""Which node or rank is at fault: real supervision, a fake srun."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from launchers.slurm_step import SlurmStep
from launchers.supervise import run_supervised
from megatron_rl.config.rank_contract import EXIT_CODE_NODE, EXIT_CODE_REQUEUE


def run(tmp_path: Path, text: str, started: int = 4, start_timeout_s: float = 30.0) -> int:
    """Two nodes of two ranks, of which the first ``started`` leave their mark; ``text`` is srun."""
    for rank in range(started):
        (tmp_path / f"rank_{rank}").mkdir()
        (tmp_path / f"rank_{rank}" / "started").touch()
    step = SlurmStep(nodes=("n1", "n2"), ranks_per_node=2, logs_dir=tmp_path, start_timeout_s=start_timeout_s)
    return run_supervised(["bash", "-c", text], os.environ, tmp_path, step.starter())


def test_node_that_never_starts_ends_the_job_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    srun = "echo 'srun: error: Task launch for StepId=7.0 failed on node n2: Communication connection failure' >&2; sleep 60"
    assert run(tmp_path, srun, started=2, start_timeout_s=2.0) == EXIT_CODE_NODE
    assert time.monotonic() - begun < 20
    said = capfd.readouterr().err
    assert "error: node n2 did not start within 2 s" in said
    assert "failed on node n2: Communication connection failure" in said


def test_node_whose_step_fails_at_once_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "echo 'slurmstepd-n2: error: no such file' >&2; exit 1", started=2) == EXIT_CODE_NODE
    said = capfd.readouterr().err
    assert "error: node n2 did not start" in said
    assert "no such file" in said


def test_failed_preflight_is_the_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    srun = "echo 'error: preflight: node n2: shows 7 GPUs, the job needs 8 a node' >&2; exit 86"
    assert run(tmp_path, srun, started=2) == EXIT_CODE_NODE
    assert capfd.readouterr().err.rstrip().splitlines()[-1] == "  | node n2: shows 7 GPUs, the job needs 8 a node"


def test_rank_that_raised_first_is_named_with_its_node(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for rank, moment in ((0, 20), (3, 10)):
        (tmp_path / f"rank_{rank}").mkdir()
        extra = {"timestamp": str(moment), "py_callstack": f"Traceback\nValueError: of rank {rank}"}
        (tmp_path / f"rank_{rank}" / "error.json").write_text(json.dumps({"message": {"extraInfo": extra}}))
    assert run(tmp_path, "exit 1", started=0) == 1
    said = capfd.readouterr().err
    assert "error: rank 3 on node n2 failed first" in said
    assert said.rstrip().splitlines()[-1] == "  rank 3 | ValueError: of rank 3"


def test_killed_rank_is_named_from_srun(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    srun = "echo 'srun: error: n1: tasks 0-1: Terminated'; echo 'srun: error: n2: task 2: Killed'; exit 137"
    assert run(tmp_path, srun) == 137
    assert "error: rank 2 on node n2 failed first (killed)" in capfd.readouterr().err


def test_ranks_that_saved_as_told_give_the_requeue_code(tmp_path: Path) -> None:
    assert run(tmp_path, 'touch "$MEGATRON_RL_STOPPED_MARK"') == EXIT_CODE_REQUEUE
