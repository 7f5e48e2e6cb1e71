"""What each task of a Slurm step runs: ``python -m launchers.slurm_rank MODULE TASK RUN_DIR``. It becomes the worker.

Standard library only: a node that cannot do its part says so before torch is read from disk.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launchers.environment import num_visible_gpus
from launchers.preflight import NodeNeeds, node_problems
from megatron_rl.config.rank_contract import EXIT_CODE_NODE

NEEDS = "MEGATRON_RL_NODE_NEEDS"
"""Variable with the :class:`NodeNeeds` of the job."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where Slurm put this task. Example: rank 3 of 4, the second of two on node2."""

    rank: int
    world_size: int
    local_rank: int
    ranks_per_node: int
    node: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> TaskPlace:
        """From the variables of a task."""
        num_nodes = int(environ["SLURM_STEP_NUM_NODES"])
        world_size = int(environ["SLURM_NTASKS"])
        return cls(
            rank=int(environ["SLURM_PROCID"]),
            world_size=world_size,
            local_rank=int(environ["SLURM_LOCALID"]),
            ranks_per_node=world_size // num_nodes,
            node=environ.get("SLURMD_NODENAME") or os.uname().nodename,
        )

    def variables(self, logs_dir: Path) -> dict[str, str]:
        """What torch reads, and where a failure is to be recorded."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "TORCHELASTIC_ERROR_FILE": str(rank_folder(logs_dir, self.rank) / "error.json"),
        }


def rank_folder(logs_dir: Path, rank: int) -> Path:
    """Folder of one rank: ``started`` (its node), ``console.log``, ``error.json``."""
    return logs_dir / f"rank_{rank}"


def main(argv: list[str]) -> int:
    """Check the node once, leave a mark, become the worker; returns only where that cannot be."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # inherited: only a worker that listens is meant
    module, task, run_dir = argv
    place, logs_dir = TaskPlace.of(os.environ), Path(run_dir) / "logs"
    try:
        problems = _problems(place)
        folder = rank_folder(logs_dir, place.rank)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "started").write_text(place.node)
    except OSError as failure:
        problems = [f"cannot write to {logs_dir}: {failure.strerror}; trainer.output_dir must be shared by all nodes"]
    for problem in problems:
        print(f"error: preflight: node {place.node}: {problem}", file=sys.stderr, flush=True)
    if problems:
        return EXIT_CODE_NODE
    if place.rank != 0:
        _redirect(folder / "console.log")
    os.execve(sys.executable, [sys.executable, "-m", module, task, run_dir], {**os.environ, **place.variables(logs_dir)})


def _problems(place: TaskPlace) -> list[str]:
    """Of this node; its first task looks for all."""
    if place.local_rank != 0:
        return []
    return node_problems(place.node, NodeNeeds.from_json(os.environ[NEEDS]), num_visible_gpus(os.environ))


def _redirect(file: Path) -> None:
    """Send both streams to a file, so that the ranks' lines never interleave; rank 0 keeps the console."""
    with file.open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
