"""The ``convert`` task: a model between a Hugging Face folder and a Megatron distributed checkpoint."""

from __future__ import annotations

from pathlib import Path

from megatron_rl.training.checkpoint import CheckpointStore
from megatron_rl.training.export import export_actor
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.model_loading import build_role
from megatron_rl.training.role_checkpoint import load_role


def convert(job: Job) -> int:
    """Write ``convert.target`` from ``convert.source`` on the actor's layout; returns the exit code. Collectives: all ranks."""
    settings = job.config.convert
    assert settings.source is not None and settings.target is not None, "the command checks both"
    if settings.to == "megatron":
        role = _frozen_actor(job, settings.source)
        folder = CheckpointStore(Path(settings.target)).save(0, {"actor": role}, {})
        job.say(f"Megatron distributed checkpoint: {folder}")
        return 0
    role = _frozen_actor(job, None)
    load_role(role, Path(settings.source) / "actor", with_optimizer=False)
    role.weights_changed()
    export_actor(job, role, Path(settings.target))
    return 0


def _frozen_actor(job: Job, folder: str | None) -> MegatronRole:
    """The policy's model without optimizer."""
    actor = job.config.actor
    return build_role(job, job.layout(actor.parallel), actor, head="lm", folder=folder, frozen=True)
