"""Test session: one thread per process before torch loads, hardware markers, golden files, NaN-filled buffers."""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("WANDB_MODE", "offline")

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launchers.environment import num_visible_gpus
from tests.support.distributed import preload_engine

if num_visible_gpus(os.environ) == 0:
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # as for ranks on a CPU: see worker_environment

NUM_GPUS_NEEDED = {"gpu": 1, "multi_gpu": 2}
STARTS_JOBS = ("vllm", "slurm", "slow")
"""Markers of tests that start engines, jobs of several processes, or a cluster."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files instead of comparing with them")


def _worker_group(item: pytest.Item) -> str:
    """For ``--dist loadgroup``: what starts jobs takes turns in one worker; any other file stays whole."""
    file = item.path.relative_to(item.config.rootpath).as_posix()
    whole_jobs = file.startswith(("tests/end_to_end/", "tests/launchers/")) or any(map(item.get_closest_marker, STARTS_JOBS))
    return "jobs" if whole_jobs else file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose marker asks for more GPUs than this host shows; name each test's group for pytest-xdist."""
    present = num_visible_gpus(os.environ)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_worker_group(item)))
        for marker, needed in NUM_GPUS_NEEDED.items():
            if item.get_closest_marker(marker) and present < needed:
                item.add_marker(pytest.mark.skip(reason=f"needs {needed} GPU(s), this host shows {present}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Where engines are to be started on this host's CPU, load vLLM once for all forked ranks."""
    if num_visible_gpus(os.environ) == 0 and any(item.get_closest_marker("vllm") for item in session.items):
        preload_engine()


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten (``--update-golden``)."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def nan_empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill what ``torch.empty`` and ``torch.empty_like`` return with NaN, so that unwritten output fails a comparison."""
    import torch

    def filled(allocate: Callable[..., Any]) -> Callable[..., Any]:
        def allocate_filled(*args: Any, **kwargs: Any) -> Any:
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return allocate_filled

    monkeypatch.setattr(torch, "empty", filled(torch.empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))
    yield
