from __future__ import annotations

from pathlib import Path

from launchers.job import JobSpec
from launchers.torchrun import torchrun_command

RUN = Path("/out/p/e/run")


def test_torchrun_command_matches_hand_computed() -> None:
    job = JobSpec(task="train", run_dir=RUN, ranks_per_node=3)
    assert torchrun_command(job, python="python") == [
        "python",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=3",
        "--max-restarts=0",
        "--log-dir=/out/p/e/run/logs",
        "--redirects=1:3,2:3",
        "-m",
        "megatron_rl.cli.worker",
        "train",
        "/out/p/e/run",
    ]


def test_torchrun_command_uses_a_given_port() -> None:
    job = JobSpec(task="sft", run_dir=RUN, ranks_per_node=1, master_port=29511)
    command = torchrun_command(job, python="python")
    assert "--standalone" not in command
    assert "--master-port=29511" in command
    assert not any(argument.startswith("--redirects") for argument in command)
