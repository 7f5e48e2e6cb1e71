"""Run a function on several gloo ranks of this machine and get every rank's answer back."""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

_PRELOAD = "tests.support.loaded_megatron"
_context = mp.get_context("forkserver")
_context.set_forkserver_preload([_PRELOAD])


def preload_engine() -> None:
    """Fork ranks from a process that has loaded vLLM too; to be called before the first of them."""
    _context.set_forkserver_preload([_PRELOAD, "tests.support.loaded_engine"])


def _child(fn: Callable[..., Any], rank: int, world_size: int, store: str, args: tuple[Any, ...], answers: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size, timeout=timedelta(seconds=120)
        )
        answers.put((rank, True, fn(*args)))
    except BaseException:
        answers.put((rank, False, traceback.format_exc()))
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run_distributed(
    world_size: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 240.0, fresh: bool = False
) -> list[Any]:
    """Call ``fn(*args)`` on ``world_size`` fresh gloo ranks and return the answers in rank order.

    ``fn`` must be a module-level function; answers must pickle (return tensors as numpy arrays or lists).
    The rendezvous is a file, so no port can collide. Raises AssertionError with the first failing rank's traceback.
    ``fresh``: start from nothing instead of forking a process that has imported the project, for ranks that use CUDA.
    """
    context = mp.get_context("spawn") if fresh else _context
    answers: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        children = [
            context.Process(target=_child, args=(fn, rank, world_size, store, args, answers), daemon=False)
            for rank in range(world_size)
        ]
        for child in children:
            child.start()
        results: dict[int, Any] = {}
        try:
            for _ in children:
                rank, succeeded, value = answers.get(timeout=timeout_s)
                assert succeeded, f"rank {rank} of {world_size} failed:\n{value}"
                results[rank] = value
            for child in children:
                child.join(timeout=30)
        finally:
            for child in children:
                if child.is_alive():
                    child.kill()
    return [results[rank] for rank in range(world_size)]


def run_alone(fn: Callable[[], None]) -> None:
    """Call ``fn()`` in a fresh process that has joined nothing; AssertionError where it raises (its traceback is printed)."""
    child = _context.Process(target=fn)
    child.start()
    child.join(timeout=120)
    assert child.exitcode == 0, f"exit code {child.exitcode}"


def _alone(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    fn(*args)


def start_rank(fn: Callable[..., Any], *args: Any) -> mp.process.BaseProcess:
    """Start ``fn(*args)`` as a job of one rank and return its process, for tests that kill it."""
    child = _context.Process(target=_alone, args=(fn, args), daemon=True)
    child.start()
    return child
