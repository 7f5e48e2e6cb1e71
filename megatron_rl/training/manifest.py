"""What makes a checkpoint folder trustworthy: a manifest, written last, that lists every file with size and hash.

A folder without a manifest, or with a file that differs from it, is partial and is never loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint."""

    path: str
    """Relative to the checkpoint, with forward slashes."""
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a complete checkpoint.

    Example: ``Manifest(step=40, world_size=2, components=("actor/model", "actor/optimizer", "extra"), ...)``.
    """

    step: int
    """RL steps done."""
    world_size: int
    """Ranks that saved it."""
    components: tuple[str, ...]
    """What can be restored from it."""
    roles: dict[str, dict[str, object]]
    """Per role: its head and the shape of its model."""
    files: tuple[FileRecord, ...]
    format: int = FORMAT

    def to_json(self) -> str:
        """Text of ``manifest.json``."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Load a folder's manifest; raises ValueError (naming the file) where it is absent or damaged."""
        path = folder / MANIFEST
        try:
            fields = json.loads(path.read_text())
            fields["files"] = tuple(FileRecord(**record) for record in fields["files"])
            fields["components"] = tuple(fields["components"])
            manifest = cls(**fields)
        except FileNotFoundError:
            raise ValueError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if manifest.format != FORMAT:
            raise ValueError(f"{path}: checkpoint format {manifest.format}, this release reads {FORMAT}")
        return manifest


def files_below(folder: Path) -> list[str]:
    """Relative paths of all files below a folder but the manifest, sorted."""
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if path != MANIFEST)


def record_files(folder: Path, paths: Iterable[str]) -> list[FileRecord]:
    """Measure files, and push them to the disk first so that the manifest never outlives them."""
    records = []
    for path in paths:
        with (folder / path).open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        records.append(FileRecord(path, (folder / path).stat().st_size, digest))
    return records


def damaged_files(folder: Path, records: Sequence[FileRecord]) -> list[str]:
    """What differs from the manifest, one sentence a file: missing, other size, other contents."""
    problems = []
    for record in records:
        path = folder / record.path
        if not path.is_file():
            problems.append(f"{record.path} is missing")
        elif path.stat().st_size != record.num_bytes:
            problems.append(f"{record.path} has {path.stat().st_size} bytes instead of {record.num_bytes}")
        else:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                    problems.append(f"{record.path} has other contents than were saved")
    return problems
