"""Torch's allocator settings, where the rollout engine has to know them.

The engine's sleep mode keeps its memory in a pool with an allocator of its own. Expandable segments do not go together with
such a pool, so the engine turns them off while it allocates; but it looks for them in ``PYTORCH_CUDA_ALLOC_CONF`` only, and
torch also reads ``PYTORCH_ALLOC_CONF``.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

READ_BY_ENGINE, READ_BY_TORCH = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def settle_allocator(environ: MutableMapping[str, str] = os.environ, *, engine_sleeps: bool) -> str:
    """Let the engine see the settings that torch has; returns what is in force, for people.

    Raises ValueError where the two variables disagree, or where torch's allocator cannot hold the engine's pool.
    """
    ours, theirs = environ.get(READ_BY_TORCH), environ.get(READ_BY_ENGINE)
    if ours is not None and theirs is not None and _expandable(ours) != _expandable(theirs):
        raise ValueError(
            f"{READ_BY_TORCH}={ours} and {READ_BY_ENGINE}={theirs} disagree about expandable_segments: unset one of them"
        )
    name, value = (READ_BY_TORCH, ours) if ours is not None else (READ_BY_ENGINE, theirs)
    if engine_sleeps and value is not None and "cudaMallocAsync" in value:
        raise ValueError(
            f"{name}={value}: the engine's sleep mode needs torch's own allocator; leave backend out, or set "
            "rollout.free_cache_engine=false"
        )
    if ours is not None and theirs is None:
        environ[READ_BY_ENGINE] = ours
    if value is None or not _expandable(value):
        return "torch's allocator: fixed segments"
    pool = "; the engine's sleep pool keeps fixed ones" if engine_sleeps else ""
    return f"torch's allocator: expandable segments ({name}){pool}"


def _expandable(settings: str) -> bool:
    return "expandable_segments:true" in settings.replace(" ", "").lower()
