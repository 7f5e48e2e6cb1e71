"""Batch scripts as text, and the shell in them run against a fake Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launchers.job import JobSpec
from launchers.slurm import BatchJob, sbatch_script, srun_command
from launchers.slurm_presets import scripts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(scripts()))
def test_shipped_scripts_match_their_source(name: str) -> None:
    assert (ROOT / name).read_text() == scripts()[name], "run `python -m launchers.slurm_presets`"


def test_shipped_scripts_are_all_rendered() -> None:
    assert {f"slurm/{path.name}" for path in (ROOT / "slurm").iterdir()} == set(scripts())


def job(**changes: object) -> BatchJob:
    return BatchJob(name="n", task="train", nodes=2, ranks_per_node=4, gpus_per_node=4, **changes)  # type: ignore[arg-type]


def test_sbatch_script_asks_for_one_task_per_rank() -> None:
    lines = sbatch_script(job(partition="p", account="a", time_limit="1:00:00", options=("--exclude=n7",))).splitlines()
    wanted = ["nodes=2", "ntasks-per-node=4", "gpus-per-node=4", "partition=p", "account=a", "time=1:00:00", "exclude=n7"]
    wanted += ["signal=B:USR1@300", "open-mode=append", "requeue"]
    assert {f"#SBATCH --{option}" for option in wanted} <= set(lines)


def test_sbatch_script_of_a_cpu_job_asks_for_no_gpu() -> None:
    text = sbatch_script(BatchJob(name="n", task="sft", nodes=1, ranks_per_node=2, gpus_per_node=0))
    assert "gpus" not in text.partition("\n\n")[0]


def test_sbatch_script_without_requeue_never_requeues() -> None:
    text = sbatch_script(job(requeue=False))
    assert "#SBATCH --no-requeue" in text
    assert "scontrol requeue" not in text


def test_sbatch_script_quotes_overrides() -> None:
    text = sbatch_script(job(overrides=("trainer.experiment_name=a b", "data.train_files=['/d/$x.jsonl']")))
    assert "'trainer.experiment_name=a b'" in text
    assert """'data.train_files=['"'"'/d/$x.jsonl'"'"']'""" in text


def test_srun_command_keeps_ranks_in_order_and_ends_with_the_first_failure() -> None:
    command = srun_command(JobSpec(task="train", run_dir=Path("/r"), ranks_per_node=4), nodes=2, python="python")
    assert {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--distribution=block", "--kill-on-bad-exit=1"} <= set(command)


def fake_cluster(folder: Path, run: str, state: str = "RUNNING") -> dict[str, str]:
    """Environment of a batch shell whose interpreter is the shell text ``run`` and whose scontrol records its arguments."""
    files = {
        "home/.venv/bin/python": run,
        "bin/scontrol": f'echo "$@" >> {folder}/asked; echo "JobId=7 JobState={state} Reason=None"',
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    return {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "MEGATRON_RL_HOME": str(folder / "home"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS_PER_NODE": "4",
    }


@pytest.mark.parametrize(
    "code,state,requeued",
    [(85, "RUNNING", True), (0, "RUNNING", False), (1, "RUNNING", False), (137, "RUNNING", False), (85, "COMPLETING", False)],
    ids=["saved", "finished", "failed", "killed", "cancelled"],
)
def test_batch_shell_requeues_only_after_a_save(code: int, state: str, requeued: bool, tmp_path: Path) -> None:
    environment = fake_cluster(tmp_path, f'echo "$@"; exit {code}', state)
    done = subprocess.run(["bash", "-s", "x.y=1"], input=sbatch_script(job()), env=environment, capture_output=True, text=True)
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert ("requeue 7" in asked) == requeued
    assert done.returncode == (0 if requeued else code)
    assert "trainer.nnodes=2 trainer.n_gpus_per_node=4 x.y=1\n" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=lambda number: number.name)
def test_batch_shell_hands_signals_on_and_waits_for_the_save(number: signal.Signals, tmp_path: Path) -> None:
    run = f"trap 'sleep 1; touch {tmp_path}/saved; exit 85' USR1; touch {tmp_path}/ready; while :; do sleep 0.1; done"
    # The fake interpreter is a shell, which cannot trap what it inherits as ignored.
    text = sbatch_script(job()).replace("(trap '' USR1; ", "(")
    script = tmp_path / "job.sbatch"
    script.write_text(text)
    shell = subprocess.Popen(["bash", str(script)], env={**os.environ, **fake_cluster(tmp_path, run)})
    deadline = time.monotonic() + 20
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    shell.send_signal(number)
    shell.send_signal(number)
    assert shell.wait(20) == 0
    assert (tmp_path / "saved").exists()
    assert "requeue 7" in (tmp_path / "asked").read_text()


def test_batch_shell_without_an_installation_says_what_to_do(tmp_path: Path) -> None:
    environment = fake_cluster(tmp_path, "exit 0") | {"MEGATRON_RL_HOME": "/nowhere"}
    done = subprocess.run(["bash"], input=sbatch_script(job()), env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "MEGATRON_RL_HOME" in done.stderr
