"""What a node must offer before weights load there; needs nothing but the standard library, so it answers in a blink."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

GIB = 1024**3
MAX_CLOCK_SKEW_S = 30.0
TOKEN_FILE = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeeds:
    """What every node of a job must offer; written by the batch host, read by the nodes.

    Example: ``NodeNeeds(folder="/shared/out/run/logs/preflight", gpus=8, min_free_gib=1.0, token="6f2a")``.
    """

    folder: str
    """Folder in the run folder that all nodes must see."""
    gpus: int
    """GPUs that ranks of a node use; 0 on CPU."""
    min_free_gib: float
    """Free space in the run folder and in the temporary folder, GiB."""
    token: str
    """What the batch host wrote to the folder's ``token`` file."""

    def publish(self) -> None:
        """Leave the token where every node must find it."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        (Path(self.folder) / TOKEN_FILE).write_text(self.token)

    def to_json(self) -> str:
        """One line of text for an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> NodeNeeds:
        """Inverse of :meth:`to_json`."""
        return cls(**json.loads(text))


def node_problems(node: str, needs: NodeNeeds, visible_gpus: int) -> list[str]:
    """Everything wrong with this node, one line each; empty where ranks may start."""
    problems = list(_folder_problems(node, Path(needs.folder), needs.token))
    places = {Path(needs.folder), Path(tempfile.gettempdir())}
    problems += [text for place in sorted(places) for text in _space_problems(place, needs.min_free_gib)]
    if visible_gpus < needs.gpus:
        problems.append(f"shows {visible_gpus} GPUs, the job needs {needs.gpus} a node")
    return problems


def _folder_problems(node: str, folder: Path, token: str) -> Iterator[str]:
    """Whether the shared folder is the batch host's, can be written, and agrees about the time."""
    try:
        seen = (folder / TOKEN_FILE).read_text()
        if seen != token:
            yield f"{folder} is another folder here than on the batch host; trainer.output_dir must be shared by all nodes"
            return
        probe = folder / f"{node}.{os.getpid()}"
        before = time.time()
        probe.write_text(node)
        stamped = probe.stat().st_mtime
        probe.unlink()
    except OSError as failure:
        yield f"cannot use the shared folder {folder}: {failure.strerror or failure}; trainer.output_dir must be shared by all"
        return
    skew = stamped - before
    if abs(skew) > MAX_CLOCK_SKEW_S:
        yield f"its clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} the file server's"


def _space_problems(place: Path, min_free_gib: float) -> Iterator[str]:
    try:
        free_gib = shutil.disk_usage(place).free / GIB
    except OSError:
        return  # named already as a folder that cannot be used
    if free_gib < min_free_gib:
        yield f"{place} has {free_gib:.1f} GiB free, launcher.min_free_gib={min_free_gib:g}"
