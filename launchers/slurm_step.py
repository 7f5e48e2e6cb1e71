"""A running Slurm step, seen from the batch host: which nodes have started, and which node or rank is to blame."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launchers.slurm_rank import rank_folder
from launchers.supervise import RankStarter
from megatron_rl.config.rank_contract import EXIT_CODE_NODE

_TASK_ENDED = re.compile(
    r"^srun: error: (\S+): tasks? (\d+)[\d,\-]*: (Exited with exit code \d+|Killed|[A-Z][\w ()]+)", re.MULTILINE
)
_PREFLIGHT = re.compile(r"^error: preflight: (node \S+: .*)$", re.MULTILINE)
_FROM_SLURM = ("srun:", "slurmstepd", "slurmd")
_NUM_LINES = 20


@dataclass(slots=True, kw_only=True)
class SlurmStep:
    """One step of one rank per task. Example: nodes ``("node1", "node2")``, 2 ranks each: rank 3 is on node2."""

    nodes: tuple[str, ...]
    ranks_per_node: int
    logs_dir: Path
    start_timeout_s: float
    started_at: float = field(default_factory=time.monotonic)
    has_started: bool = False
    """Whether every node was seen to have started, so that nobody need look again."""

    def absent_nodes(self) -> list[str]:
        """Nodes on which some rank has not left its start mark."""
        absent = {
            self.nodes[rank // self.ranks_per_node]
            for rank in range(len(self.nodes) * self.ranks_per_node)
            if not (rank_folder(self.logs_dir, rank) / "started").exists()
        }
        return [node for node in self.nodes if node in absent]

    def overdue(self) -> bool:
        """Whether the time to start is over and a node has not."""
        if self.has_started or time.monotonic() - self.started_at < self.start_timeout_s:
            return False
        self.has_started = not self.absent_nodes()
        return not self.has_started

    def starter(self) -> RankStarter:
        """How to run this step under supervision: any signal becomes SIGUSR1 to srun, which hands it to every task."""
        return RankStarter(
            lambda srun, number: srun.send_signal(signal.SIGUSR1),  # srun takes SIGTERM as "kill the step now"
            lambda code, console: self.blame(code, console),
            self.overdue,
            orphaned=signal.SIGTERM,  # killed outright, srun would leave its tasks behind
        )

    def _absent_text(self, absent: Sequence[str], console: str) -> str:
        waited = min(self.start_timeout_s, time.monotonic() - self.started_at)
        names = ", ".join(absent)
        lines = [line for line in console.splitlines() if line.startswith(_FROM_SLURM) or any(node in line for node in absent)]
        said = "".join(f"\n  | {line}" for line in lines[-_NUM_LINES:])
        plural = "nodes" if len(absent) > 1 else "node"
        return f"error: {plural} {names} did not start within {waited:.0f} s (launcher.start_timeout_s){said}"

    def blame(self, code: int, console: str) -> tuple[int, str]:
        """Exit code of the job and the text that names the node or rank at fault, for a step that failed with ``code``."""
        recorded = self._first_recorded()
        if recorded is not None:
            rank, said = recorded
            return (code if code > 0 else 1), self._rank_text(rank, "raised", said)
        refused = list(dict.fromkeys(_PREFLIGHT.findall(console)))
        if refused:
            lines = "".join(f"\n  | {line}" for line in refused)
            return EXIT_CODE_NODE, f"error: {len(refused)} preflight checks failed; no weights were loaded{lines}"
        absent = self.absent_nodes()
        if absent:
            return EXIT_CODE_NODE, self._absent_text(absent, console)
        ended = [found for found in _TASK_ENDED.findall(console) if found[2] != "Terminated"]
        if ended:
            _, rank, how = ended[0]
            log = rank_folder(self.logs_dir, int(rank)) / "console.log"
            said = log.read_text(errors="replace").splitlines() if log.exists() else []
            return code, self._rank_text(int(rank), how[0].lower() + how[1:], said)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return (code if code > 0 else 128 - code), f"error: srun ended with {how}; all output is in {self.logs_dir}"

    def _rank_text(self, rank: int, how: str, said: Sequence[str]) -> str:
        node = self.nodes[rank // self.ranks_per_node]
        lines = [f"error: rank {rank} on node {node} failed first ({how}); all output is in {self.logs_dir}"]
        return "\n".join([*lines, *(f"  rank {rank} | {line}" for line in said[-_NUM_LINES:] if line.strip())])

    def _first_recorded(self) -> tuple[int, list[str]] | None:
        """Rank and traceback of the exception that was raised first."""
        found = []
        for rank in range(len(self.nodes) * self.ranks_per_node):
            file = rank_folder(self.logs_dir, rank) / "error.json"
            if file.exists():
                extra = json.loads(file.read_text())["message"]["extraInfo"]
                found.append((float(extra["timestamp"]), rank, str(extra["py_callstack"])))
        if not found:
            return None
        _, rank, trace = min(found)
        return rank, trace.splitlines()
