"""A growing JSONL file, read a piece at a time."""

from __future__ import annotations

import json
from pathlib import Path

JsonObject = dict[str, object]


class JsonlTail:
    """Reads what was appended since the last look; notices when the file was replaced or cut.

    A resumed run rewrites its files (``observability.sinks.supersede``), so another inode or a smaller size starts over.
    """

    def __init__(self, path: Path) -> None:
        """``path`` need not exist yet."""
        self.path = path
        self._inode: int | None = None
        self._offset = 0

    def read_new(self) -> tuple[list[JsonObject], bool]:
        """New objects, and whether they replace all earlier ones.

        A last line without its newline is left for the next look; a line that is no JSON object is passed over.
        """
        if not self.path.exists():
            return [], False
        with self.path.open("rb") as file:
            inode = self.path.stat().st_ino
            size = file.seek(0, 2)
            restarted = inode != self._inode or size < self._offset
            if restarted:
                self._inode, self._offset = inode, 0
            file.seek(self._offset)
            complete, _, _ = file.read().rpartition(b"\n")
        if complete:
            self._offset += len(complete) + 1
        return [item for line in complete.split(b"\n") if (item := _object(line)) is not None], restarted


def read_objects(path: Path) -> list[JsonObject]:
    """Every complete object of a file; empty where there is no file."""
    return JsonlTail(path).read_new()[0]


def _object(line: bytes) -> JsonObject | None:
    try:
        value = json.loads(line.decode("utf-8", errors="replace"))
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
