"""What a run must remember beyond its weights, and where it resumes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_rl.algorithms.kl import KlController
from megatron_rl.config.training import TrainerConfig
from megatron_rl.data.stream import PromptStream
from megatron_rl.runtime.random_states import rng_state, set_rng_state
from megatron_rl.training.checkpoint import CheckpointStore
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.memory_phases import MemoryPhases


def resume_folder(config: TrainerConfig, store: CheckpointStore) -> Path | None:
    """Checkpoint that ``trainer.resume_mode`` asks for; None = start afresh. Collectives: the world."""
    if config.resume_mode == "disable":
        return None
    if config.resume_mode == "path":
        return Path(str(config.resume_path))
    return store.newest_complete()


def saves_after(step: int, total_steps: int, *, save_freq: int, interrupted: bool) -> bool:
    """Whether a checkpoint is written after a step; ``save_freq`` below 1 = only where the run is interrupted.

    Whatever ``save_freq`` says, a run that is interrupted before its last step saves: its exit code promises that it can
    go on.
    """
    last = step == total_steps
    return (interrupted and not last) or (save_freq > 0 and (last or step % save_freq == 0))


@dataclass(frozen=True)
class RunState:
    """Weights, optimizers, schedules, data position, KL coefficient and generators of one run."""

    store: CheckpointStore
    roles: dict[str, MegatronRole]
    stream: PromptStream
    kl_controller: KlController
    config: TrainerConfig
    memory: MemoryPhases
    """Brings a role's state to the device where it had left it, one role at a time."""

    def save(self, step: int) -> Path:
        """Write a complete checkpoint; it counts only once its manifest is there. Enters collectives."""
        extra = {"step": step, "kl_controller": self.kl_controller.state_dict(), **self.position()}
        return self.store.save(step, self.roles, extra, prepare=self._prepare)

    def resume(self) -> int:
        """Load what the resume mode asks for; returns the step to go on from (0 for a fresh start)."""
        folder = resume_folder(self.config, self.store)
        if folder is None:
            return 0
        extra = self.store.load(folder, self.roles, prepare=self._prepare)
        self.kl_controller.load_state_dict(extra["kl_controller"])
        self.rewind(extra)
        return int(extra["step"])

    def position(self) -> dict[str, Any]:
        """All that sampling moves: the place in the data and the generators."""
        return {"stream": self.stream.state_dict(), "rng": rng_state()}

    def rewind(self, position: dict[str, Any]) -> None:
        """Go back to what :meth:`position` gave."""
        self.stream.load_state_dict(position["stream"])
        set_rng_state(position["rng"])

    def _prepare(self, role_name: str) -> None:
        self.memory.enter(f"{role_name} state")
