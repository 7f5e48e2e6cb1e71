"""Where a step's numbers go: the protocol, and the JSONL file that is always written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from megatron_rl.config.atomic_files import write_atomically

Record = dict[str, float | None]
"""Numbers of one step; None where a value was not finite."""


class Sink(Protocol):
    """Receives plain numbers, on the main rank only."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record one step; must not wait for a network."""

    def close(self) -> None:
        """Finish within seconds."""


class JsonlSink:
    """One JSON object a step, flushed at once: ``{"step": 3, "reward/mean": 0.5, ...}``.

    A value that is not finite becomes ``null``, since JSON has no NaN. When a resumed run writes a step that an earlier
    attempt had reached already, the old records from there on move to ``<name>.superseded.jsonl``: the file keeps
    exactly one object a step, and nothing is lost.
    """

    def __init__(self, path: Path) -> None:
        """Open nothing yet; the first write decides which old records stay."""
        self._path = path
        self._file: IO[str] | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one object. Raises OSError where the disk refuses."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            supersede(self._path, first_step=step)
            self._file = self._path.open("a", encoding="utf-8")
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_metrics(path: Path) -> list[Record]:
    """Records of a metrics file, oldest first; a line cut short by a kill is left out."""
    return read_jsonl(path)


def read_jsonl(path: Path) -> list[Any]:
    """Objects of a file with one a line; a line cut short by a kill is left out."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def supersede(path: Path, first_step: int) -> None:
    """Move records of ``first_step`` and later to ``<name>.superseded.jsonl``; drop a line cut short by a kill."""
    if not path.exists():
        return
    records = read_jsonl(path)
    old = [record for record in records if record["step"] >= first_step]
    if old:
        with path.with_suffix(".superseded.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in old)
    kept = [json.dumps(record) + "\n" for record in records if record["step"] < first_step]
    write_atomically(path, "".join(kept))
