"""Files and links that a reader finds old or new, never in part, whoever else writes them meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex


def write_atomically(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a text file (UTF-8) in one step; its folder exists.

    Args:
        path: made, or replaced.
        text: of the file.
        durable: it and its name are on the disk on return, whatever happens to the host.
    """
    partial = _beside(path)
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def replace_link(link: Path, target: str) -> None:
    """Point a symlink at ``target``, relative to its folder; at no moment is there none."""
    partial = _beside(link)
    partial.symlink_to(target)
    os.replace(partial, link)


def sync_folder(folder: Path) -> None:
    """Push a folder's entries (renames) to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{token_hex(4)}.partial")
