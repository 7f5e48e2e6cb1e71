"""Real torchrun, fake worker: folders, logs, exit codes, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launchers.submit import launch_task
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose
from tests.support.processes import is_alive

ROOT = Path(__file__).parents[2]


def start(task: str, output_dir: Path, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    module = ["-m", "tests.launchers.start_job", task, str(output_dir)]
    command = [*prefix, *module] if prefix else [sys.executable, *module]
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MEGATRON_RL_ATTEMPT")}
    return subprocess.Popen(
        command, cwd=ROOT, env=clean | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def attempts(output_dir: Path) -> list[Path]:
    return sorted(path for path in (output_dir / "p" / "e").iterdir() if path.is_dir() and path.name[0] not in ".l")


def test_launch_task_makes_one_folder_and_two_ranks(tmp_path) -> None:
    done = start("train", tmp_path)
    output, _ = done.communicate(timeout=120)
    assert done.returncode == 0, output
    (run_dir,) = attempts(tmp_path)
    assert (tmp_path / "p" / "e" / "latest").resolve() == run_dir
    assert {(run_dir / f"rank{rank}.txt").read_text() for rank in (0, 1)} == {f"2 {run_dir.name}"}
    assert (run_dir / "config.yaml").exists()
    assert "hello from rank 0" in output
    assert "hello from rank 0" in (run_dir / "logs" / "console.log").read_text()
    assert "hello from rank 1" not in output
    assert any("hello from rank 1" in log.read_text() for log in run_dir.glob("logs/*/attempt_0/1/stdout.log"))


def test_launch_task_names_the_first_failing_rank_last(tmp_path) -> None:
    done = start("evaluate", tmp_path)
    output, _ = done.communicate(timeout=120)
    assert done.returncode == 7
    assert "ChildFailedError" not in output
    assert "error: rank 1 failed first (exit code 7)" in output
    assert output.rstrip().splitlines()[-1] == "  rank 1 | ValueError: rank 1 is broken on purpose"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], ids=lambda number: number.name)
def test_launch_task_lets_ranks_save_when_signalled(number: signal.Signals, tmp_path) -> None:
    job = start("generate", tmp_path)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("p/e/2*/ready*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(number)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 85, output
    assert len(list(attempts(tmp_path)[0].glob("saved*"))) == 2
    assert "failed first" not in output


def test_ranks_of_an_outside_torchrun_share_the_folder_of_rank_0(tmp_path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--log-dir={tmp_path}")
    job = start("train", tmp_path, prefix=torchrun)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output
    (run_dir,) = attempts(tmp_path)
    assert sorted(path.name for path in run_dir.glob("rank*")) == ["rank0.txt", "rank1.txt"]


def test_launch_task_dies_without_orphans(tmp_path) -> None:
    """Killed outright, it takes its ranks along at once: nobody waits for what they would save, and they hold GPUs."""
    job = start("generate", tmp_path)
    deadline = time.monotonic() + 60
    ranks: list[int] = []
    while len(ranks) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        ranks = [int(text) for path in tmp_path.glob("p/e/2*/ready*") if (text := path.read_text())]
    assert len(ranks) == 2
    job.kill()
    while any(is_alive(pid) for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_alive(pid) for pid in ranks)
    assert not list(tmp_path.glob("p/e/2*/saved*"))


def test_launch_task_rejects_a_place_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NODE_RANK", "first")
    config = compose(
        [
            "experiment=tiny_cpu",
            "actor.parallel.tensor=1",
            "launcher=torchrun",
            "trainer.nnodes=2",
            f"trainer.output_dir={tmp_path}",
        ]
    )
    with pytest.raises(ConfigError, match="NODE_RANK=first in the environment: must be a whole number"):
        launch_task("train", config)
    assert list(tmp_path.iterdir()) == []
