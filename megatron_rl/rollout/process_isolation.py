"""Keep an engine in this process from changing what the trainer relies on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from megatron_rl.runtime.random_states import rng_state, set_rng_state

_RESTORED_VARIABLES = ("LD_PRELOAD", "LOCAL_WORLD_SIZE", "NUMEXPR_MAX_THREADS", "OMP_NUM_THREADS")
"""Environment variables an engine's start rewrites and child processes or the launcher's ranks read."""


@contextmanager
def isolated_rng(device: torch.device) -> Iterator[None]:
    """Restore the global Python, NumPy, torch (and, on a GPU, CUDA) random states on leaving.

    An engine in this process seeds and draws from them; the trainer's data order, dropout and initialisation must not
    depend on whether or how much was generated.
    """
    state = rng_state()
    cuda_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        set_rng_state(state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, device)


@contextmanager
def preserved_process_settings() -> Iterator[None]:
    """Restore, on leaving, the environment variables and the torch functions that an engine's start replaces.

    On CPU the start turns ``torch.set_num_threads`` into a no-op for the whole process.
    """
    set_num_threads = torch.set_num_threads
    before = {name: os.environ.get(name) for name in _RESTORED_VARIABLES}
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
