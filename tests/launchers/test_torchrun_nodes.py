"""``launcher=torchrun`` on two "machines" of this host: fixed numbers, one run folder, signals, restarts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launchers.job import JobSpec
from launchers.meeting import hand_out
from launchers.supervise import run_supervised
from launchers.torchrun import torchrun_command

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(task: str, output_dir: Path, node: int, port: int, *more: str) -> subprocess.Popen[str]:
    overrides = (f"launcher.node_rank={node}", "launcher.master_addr=127.0.0.1", f"launcher.master_port={port}", *more)
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MEGATRON_RL_ATTEMPT")}
    command = [sys.executable, "-m", "tests.launchers.start_node", task, str(output_dir), *overrides]
    return subprocess.Popen(command, cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_head_node_has_rank_0_whoever_starts_first(tmp_path: Path) -> None:
    port = free_port()
    second = start("train", tmp_path, 1, port)
    time.sleep(3)
    first = start("train", tmp_path, 0, port)
    outputs = [node.communicate(timeout=120)[0] for node in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert "hello from rank 0" in outputs[0]
    assert "hello from rank 1" in outputs[1]
    (run_dir,) = (path for path in (tmp_path / "p" / "e").glob("2*"))
    assert sorted(path.name for path in run_dir.glob("rank*.txt")) == ["rank0.txt", "rank1.txt"]


def test_signal_to_one_node_gives_the_requeue_code(tmp_path: Path) -> None:
    """Twice, as batch systems do; USR1 and TERM."""
    port = free_port()
    nodes = [start("generate", tmp_path, node, port) for node in (0, 1)]
    deadline = time.monotonic() + 90
    while len(list(tmp_path.glob("p/e/2*/ready*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    for node, number in zip(nodes, (signal.SIGUSR1, signal.SIGTERM), strict=True):
        node.send_signal(number)
        node.send_signal(number)
    outputs = [node.communicate(timeout=60)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [85, 85], outputs


def test_absent_node_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"of 3 nodes, 1, 2 did not come within 0 s"):
        hand_out(free_port(), "text", num_nodes=3, timeout_s=0.2)
    alone = start("train", tmp_path, 1, free_port(), "launcher.rendezvous_timeout_s=1")
    assert "node 1 could not reach node 0" in alone.communicate(timeout=60)[0]
    assert alone.returncode == 2


def test_ranks_are_started_again_after_a_failure(tmp_path: Path) -> None:
    job = JobSpec(task="train", run_dir=tmp_path, ranks_per_node=2, module="tests.launchers.flaky_worker", max_restarts=1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert run_supervised(torchrun_command(job), environment, job.logs_dir) == 0
    assert {path.name.partition(".")[0] for path in tmp_path.glob("start*")} == {"start0", "start1"}
