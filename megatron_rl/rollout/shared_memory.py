"""Names of the engine's shared-memory segments, and their removal: debris of a dead run must not block the next.

A segment name starts with an identity: user, process namespace, process id, process start time and a random part.
So two runs never collide, and a leftover can be told from the segment of a run that is still starting.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from pathlib import Path

from megatron_rl.runtime.processes import start_ticks

SEGMENTS = Path("/dev/shm")
"""Where POSIX shared memory appears as files."""

_PREFIX = "megatron_rl"
_IDENTITY = re.compile(rf"{_PREFIX}_(?P<user>\d+)_(?P<namespace>\d+)_(?P<pid>\d+)_(?P<started>\d+)_[0-9a-f]+")


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def new_identity() -> str:
    """A name of this process that no other process on this host has or will have."""
    pid = os.getpid()
    return f"{_PREFIX}_{os.getuid()}_{_namespace()}_{pid}_{start_ticks(pid)}_{secrets.token_hex(4)}"


@contextmanager
def named_segments(identity: str) -> Iterator[None]:
    """Give segments that this process creates without a name one of the identity's, instead of an anonymous ``psm_*``.

    Then what a process leaves that was killed while its engine started can be told from other programs' segments.
    """
    original = shared_memory._make_filename  # type: ignore[attr-defined]
    shared_memory._make_filename = lambda: f"/{identity}-{secrets.token_hex(4)}"  # type: ignore[attr-defined]
    try:
        yield
    finally:
        shared_memory._make_filename = original  # type: ignore[attr-defined]


def _is_leftover(name: str) -> bool:
    """Whether a segment is ours and its process is gone. Processes of another namespace cannot be judged: not ours."""
    match = _IDENTITY.match(name)
    if match is None or int(match["user"]) != os.getuid() or int(match["namespace"]) != _namespace():
        return False
    return start_ticks(int(match["pid"])) != int(match["started"])


def _unlink(names: list[str], folder: Path) -> list[str]:
    for name in names:
        (folder / name).unlink(missing_ok=True)
    return sorted(names)


def sweep_leftovers(folder: Path = SEGMENTS) -> list[str]:
    """Remove segments of own runs whose process is dead; returns their names."""
    if not folder.is_dir():
        return []
    return _unlink([path.name for path in folder.iterdir() if _is_leftover(path.name)], folder)


def unlink_segments(identity: str, folder: Path = SEGMENTS) -> list[str]:
    """Remove the names of an identity's segments; processes that have them mapped keep using the memory.

    Called once every rank has attached, so that not even a killed run leaves anything behind. Returns the names.
    """
    if not folder.is_dir():
        return []
    return _unlink([path.name for path in folder.iterdir() if path.name.startswith(identity)], folder)
