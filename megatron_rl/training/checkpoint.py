"""Checkpoints of a run: every role and what the loop must remember, complete or not there at all."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from megatron_rl.config.atomic_files import sync_folder, write_atomically
from megatron_rl.config.checkpoint_shape import OWN_KEYS
from megatron_rl.parallel.gather import gather_objects
from megatron_rl.training.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    damaged_files,
    files_below,
    record_files,
)
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.role_checkpoint import load_role, save_role

_log = logging.getLogger(__name__)

_PARTIAL = ".partial"


def _is_ready(role_name: str) -> None:
    """Roles stay where they are."""


def _components(name: str, role: MegatronRole) -> tuple[str, ...]:
    return (f"{name}/model",) if role.optimizer is None else (f"{name}/model", f"{name}/optimizer")


def _description(role: MegatronRole) -> dict[str, object]:
    shape = role.model_config.model_dump(mode="json", exclude=set(OWN_KEYS))
    distributed = None if role.optimizer is None else role.config.optim.use_distributed_optimizer
    return {"head": role.chunks[0].head, "model": shape, "distributed_optimizer": distributed}


def _on_first_rank(action: Callable[[], object]) -> Any:
    """Run something on rank 0 and give every rank its answer, or its error.

    Collectives: the world.
    """
    box: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            box[0] = action()
        except (OSError, ValueError) as error:
            box[1] = error
    dist.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise box[1]
    return box[0]


def _shared_work(work: Callable[[], list[Any]]) -> list[Any]:
    """Run a share of some file work on each rank and join the results; an error on one rank is raised on all.

    Collectives: the world.
    """
    try:
        mine: object = work()
    except (OSError, ValueError) as error:
        mine = error
    assert dist.group.WORLD is not None, "this rank has joined the job"
    answers: list[Any] = list(gather_objects(mine, dist.group.WORLD).values())
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [item for answer in answers for item in answer]


@dataclass(frozen=True)
class CheckpointStore:
    """Checkpoints of one run, ``root/step_00000040`` and so on, on a file system all ranks see.

    A save goes to a hidden folder, its manifest is written when every file is on disk, and one rename makes it
    visible; the ``latest`` file follows. Methods are called by all ranks of the job together.
    """

    root: Path
    keep: int | None = None
    """Complete checkpoints that stay; None = all."""

    def save(
        self,
        step: int,
        roles: Mapping[str, MegatronRole],
        extra: Mapping[str, Any],
        *,
        prepare: Callable[[str], None] = _is_ready,
    ) -> Path:
        """Write one complete checkpoint.

        Args:
            step: RL steps done; names the folder, and replaces an older save of the same step.
            roles: by name; each must cover all ranks.
            extra: this rank's picklable state (data position, KL coefficient, generator states).
            prepare: called with each role's name before it is saved; brings to the device what had left it.

        Returns its folder. Collectives: the world.
        """
        name = f"step_{step:08d}"
        hidden = self.root / f".{name}{_PARTIAL}"
        _on_first_rank(lambda: self._open_hidden(hidden, roles))
        for role_name, role in roles.items():
            prepare(role_name)
            save_role(role, hidden / role_name)
        torch.save(dict(extra), hidden / "extra" / f"rank_{dist.get_rank()}.pt")
        dist.barrier()
        rank, world = dist.get_rank(), dist.get_world_size()
        records = _shared_work(lambda: record_files(hidden, files_below(hidden)[rank::world]))
        manifest = Manifest(
            step=step,
            world_size=world,
            components=(*(part for name, role in roles.items() for part in _components(name, role)), "extra"),
            roles={role_name: _description(role) for role_name, role in roles.items()},
            files=tuple(sorted(records, key=lambda record: record.path)),
        )
        _on_first_rank(lambda: self._publish(hidden, self.root / name, manifest))
        return self.root / name

    def load(
        self,
        folder: Path,
        roles: Mapping[str, MegatronRole],
        *,
        allow_missing: Collection[str] = (),
        prepare: Callable[[str], None] = _is_ready,
    ) -> dict[str, Any]:
        """Restore roles from a complete checkpoint, whatever layouts it was saved on.

        Args:
            folder: of the checkpoint.
            roles: by name; a frozen role takes the weights only.
            allow_missing: components that may be absent, such as ``critic/optimizer``; they keep what they have.
            prepare: as in :meth:`save`.

        Returns this rank's extra state (rank 0's where the checkpoint has fewer ranks).

        Raises ValueError naming what is missing, damaged or of another shape. Collectives: the world.
        """
        manifest: Manifest = _on_first_rank(lambda: Manifest.read(folder))
        problems = self._damage(folder, manifest)
        if problems:
            raise ValueError(f"{folder} is damaged: {'; '.join(problems[:5])}; resume from an older checkpoint")
        _check_contents(folder, manifest, roles, allow_missing)
        for name, role in roles.items():
            if f"{name}/model" in manifest.components:
                prepare(name)
                with_optimizer = role.optimizer is not None and f"{name}/optimizer" in manifest.components
                load_role(role, folder / name, with_optimizer=with_optimizer)
        return self._load_extra(folder, manifest)

    def newest_complete(self) -> Path | None:
        """The complete checkpoint with the highest step; partial and damaged ones are skipped with a warning.

        Collectives: the world.
        """
        candidates: list[Path] = _on_first_rank(self._candidates)
        for folder in candidates:
            try:
                problems = self._damage(folder, _on_first_rank(partial(Manifest.read, folder)))
            except ValueError as error:
                problems = [str(error)]
            if not problems:
                return folder
            if dist.get_rank() == 0:
                _log.warning("skipping checkpoint %s: %s", folder, "; ".join(problems[:5]))
        return None

    def _candidates(self) -> list[Path]:
        """Published folders, newest first."""
        for debris in sorted(self.root.glob(f".step_*{_PARTIAL}")):
            _log.warning("ignoring %s: a save that was cut short", debris)
        return sorted((path for path in self.root.glob("step_*") if path.is_dir()), reverse=True)

    def _damage(self, folder: Path, manifest: Manifest) -> list[str]:
        """Differences from the manifest; each rank reads a share of the files."""
        share: tuple[FileRecord, ...] = manifest.files[dist.get_rank() :: dist.get_world_size()]
        return [str(problem) for problem in _shared_work(lambda: damaged_files(folder, share))]

    def _open_hidden(self, hidden: Path, roles: Mapping[str, MegatronRole]) -> None:
        """Make an empty folder to write to, clearing the debris of saves that were cut short."""
        self.root.mkdir(parents=True, exist_ok=True)
        for debris in self.root.glob(f".step_*{_PARTIAL}"):
            shutil.rmtree(debris)
        for name in (*roles, "extra"):
            (hidden / name).mkdir(parents=True)

    def _publish(self, hidden: Path, folder: Path, manifest: Manifest) -> None:
        write_atomically(hidden / MANIFEST, manifest.to_json(), durable=True)
        if folder.exists():
            # An older save of this step, from before a resume: out of the way first, a folder cannot be replaced.
            folder.rename(self.root / f".{folder.name}.replaced{_PARTIAL}")
        hidden.rename(folder)
        sync_folder(self.root)
        write_atomically(self.root / "latest", f"{folder.name}\n", durable=True)
        for debris in self.root.glob(f".step_*{_PARTIAL}"):
            shutil.rmtree(debris)
        if self.keep is not None:
            for old in sorted(self.root.glob("step_*"))[: -self.keep]:
                if old.is_dir() and old != folder:
                    shutil.rmtree(old)

    def _load_extra(self, folder: Path, manifest: Manifest) -> dict[str, Any]:
        rank = dist.get_rank()
        if rank >= manifest.world_size:
            rank = 0
        if "extra" not in manifest.components:
            return {}
        # Written by this program: holds generator states, which torch's restricted loader refuses.
        extra: dict[str, Any] = torch.load(folder / "extra" / f"rank_{rank}.pt", weights_only=False)
        return extra


def _check_contents(
    folder: Path, manifest: Manifest, roles: Mapping[str, MegatronRole], allow_missing: Collection[str]
) -> None:
    wanted = [part for name, role in roles.items() for part in _components(name, role)]
    missing = [part for part in (*wanted, "extra") if part not in manifest.components and part not in allow_missing]
    if missing:
        raise ValueError(
            f"{folder} lacks {', '.join(missing)} (it has {', '.join(manifest.components)}); "
            "resume a run of the same kind, or allow these to start afresh"
        )
    for name, role in roles.items():
        saved, wanted_role = manifest.roles.get(name), _description(role)
        if saved is None:
            continue
        differing = sorted(_flat(saved).items() ^ _flat(wanted_role).items())
        if differing:
            raise ValueError(f"{folder}: role {name} was saved with another model: {differing}")
        formats = saved["distributed_optimizer"], wanted_role["distributed_optimizer"]
        if None not in formats and formats[0] != formats[1]:
            raise ValueError(
                f"{folder}: {name}.optim.use_distributed_optimizer={formats[1]}, but its moments were saved with "
                f"{formats[0]}, another format; resume with {name}.optim.use_distributed_optimizer={str(formats[0]).lower()}"
            )


def _flat(description: Mapping[str, Any]) -> dict[str, str]:
    return {"head": str(description["head"]), **{key: str(value) for key, value in description["model"].items()}}
