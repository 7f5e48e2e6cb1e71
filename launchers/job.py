"""What is to be started, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WORKER_MODULE = "megatron_rl.cli.worker"
"""Module every rank runs, with the task and the run folder as arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One start of a task.

    Example: ``JobSpec(task="train", run_dir=Path("outputs/p/e/20260101-120000-3fa1"), ranks_per_node=2)``.
    """

    task: str
    run_dir: Path
    ranks_per_node: int
    module: str = WORKER_MODULE
    master_addr: str | None = None
    """Rendezvous host; None = this machine."""
    master_port: int | None = None
    """Rendezvous port; None = a free one."""
    nodes: int = 1
    """Machines; each starts its own ranks."""
    node_rank: int = 0
    """Number of this machine; its ranks are ``node_rank * ranks_per_node`` and up."""
    max_restarts: int = 0
    """Times that torchrun starts the ranks again after a failure."""

    @property
    def logs_dir(self) -> Path:
        """Folder of the console log and of each rank's output, one per node where there are several."""
        logs = self.run_dir / "logs"
        return logs if self.nodes == 1 else logs / f"node_{self.node_rank}"
