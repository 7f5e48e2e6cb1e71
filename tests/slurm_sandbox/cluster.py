"""A real Slurm of two nodes on this machine, for as long as a test session lasts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIZE = {
    "SLURM_SANDBOX_NODES": "2",
    "SLURM_SANDBOX_CPUS": "64",
    "SLURM_SANDBOX_GPUS": "8",
    "SLURM_SANDBOX_NET": "netns",
    "SLURM_SANDBOX_PREFIX": "10.78.0",
    "SLURM_SANDBOX_CRED_EXPIRE": "5",  # and so a requeued job starts after six to eight seconds
}


def obstacle() -> str | None:
    """Why no cluster can run on this machine; None where one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "the Slurm sandbox needs root on Linux"
    if shutil.which("slurmctld") is None and shutil.which("apt-get") is None:
        return "Slurm is not installed, and there is no apt-get to install it"
    probe = subprocess.run(["unshare", "--uts", "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, text=True)
    return None if probe.returncode == 0 else f"this machine gives no namespaces: {probe.stderr.strip()}"


@dataclass(frozen=True)
class Cluster:
    """A running sandbox. All its state is in ``folder``."""

    folder: Path

    @classmethod
    def start(cls, folder: Path) -> Cluster:
        """Install what is missing and start; skips nothing: what fails here fails the test."""
        cluster = cls(folder)
        cluster.revive()
        return cluster

    def revive(self) -> None:
        """Start what is not running: everything at first, later the nodes that died."""
        done = subprocess.run(
            ["bash", str(HERE / "start.sh")],
            env={**os.environ, **SIZE, "SLURM_SANDBOX": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """End every process of the sandbox and remove its folder."""
        environment = {**os.environ, "SLURM_SANDBOX_RM": "1"}
        subprocess.run(["bash", str(HERE / "stop.sh"), str(self.folder)], env=environment, check=True, capture_output=True)

    @property
    def environment(self) -> dict[str, str]:
        """For commands of a user on the login node."""
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MEGATRON_RL_HOME")}
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**clean, "PATH": path, "SLURM_CONF": f"{self.folder}/etc/slurm.conf", "SLURM_SANDBOX": str(self.folder)}

    def run(self, *command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node."""
        return subprocess.run(
            command, cwd=cwd, env={**self.environment, **environment}, capture_output=True, text=True, timeout=60
        )

    def ask(self, *command: str) -> str:
        """Output of a command that must succeed."""
        done = self.run(*command, cwd=self.folder)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def fields(self, job: str) -> dict[str, str]:
        """What ``scontrol show job`` says."""
        words = self.ask("scontrol", "show", "job", "-o", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def crash(self, node: str) -> None:
        """Kill a node with everything that runs there, then bring the machine back."""
        os.kill(int((self.folder / "run" / f"{node}.pid").read_text()), 9)
        time.sleep(0.5)
        self.revive()

    def on_node(self, node: str, *command: str) -> None:
        """Run a command in a node's own mount namespace."""
        outer = (self.folder / "run" / f"{node}.pid").read_text().strip()
        inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0]
        subprocess.run(["nsenter", "-t", inner, "--mount", *command], check=True)

    def wait_end(self, job: str, within_s: float = 150.0) -> str:
        """State of a job once it has ended for good."""
        final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_for(lambda: self.fields(job)["JobState"] in final, within_s, lambda: f"job {job}: {self.fields(job)}")
        return self.fields(job)["JobState"]


def wait_for(condition: Callable[[], bool], within_s: float, otherwise: Callable[[], str] = lambda: "") -> None:
    """Poll; fails with ``otherwise()``."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.3)
