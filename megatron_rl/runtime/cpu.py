"""Megatron-Core on a host without CUDA: answers for ``torch.cuda`` and for ``device="cuda"`` arguments.

Megatron-Core asks for the current CUDA device, streams, events and CUDA RNG states in many places. On a CPU-only host
each of these has an obvious answer: the CPU, nothing to order, and the CPU generator. Nothing here is active where
there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

_CPU = torch.device("cpu")


class _NullStream:
    """A stream on a device that has none: work is already done when a call returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self.cuda_stream = 0

    def __enter__(self) -> _NullStream:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: object) -> None:
        return None

    def wait_event(self, event: object) -> None:
        return None

    def record_event(self, event: object = None) -> _NullEvent:
        return _NullEvent()

    def synchronize(self) -> None:
        return None


class _NullEvent:
    """An event that has always happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def query(self) -> bool:
        return True

    def record(self, stream: object = None) -> None:
        return None

    def wait(self, stream: object = None) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end: object) -> float:
        return 0.0


def _names_cuda(value: object) -> bool:
    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda"


def _to_cpu(value: Any) -> Any:
    return _CPU if _names_cuda(value) else value


class _CudaMeansCpu(TorchFunctionMode):
    """Turn every request for a CUDA tensor into one for a CPU tensor."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = {name: _to_cpu(value) for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not options:
            # Gradient norms accept only tensors that call themselves CUDA tensors.
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*(_to_cpu(arg) for arg in args), **options)


def _get_rng_state(device: object = "cuda", **kwargs: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(new_state: torch.Tensor, device: object = "cuda", **kwargs: Any) -> None:
    torch.set_rng_state(new_state)


def _nothing() -> Callable[..., None]:
    """A new function that does nothing: torch.compile files each function under one name and refuses a shared one."""
    return lambda *args, **kwargs: None


_TORCH_CUDA: dict[str, Any] = {
    "current_device": lambda: _CPU,
    "set_device": _nothing(),
    "synchronize": _nothing(),
    "empty_cache": _nothing(),
    "current_stream": _NullStream,
    "default_stream": lambda device=None: _NullStream(),
    "set_stream": _nothing(),
    "stream": lambda stream: stream if stream is not None else _NullStream(),
    "Stream": _NullStream,
    "Event": _NullEvent,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "manual_seed": lambda seed: torch.manual_seed(seed),
}


def install_cpu_runtime() -> bool:
    """Let Megatron-Core run on this process's CPU; does nothing where CUDA is available.

    Idempotent. Returns whether the process runs on the CPU answers. Must run before the first Megatron model is built.
    """
    if torch.cuda.is_available():
        return False
    # Not told from torch.cuda itself: an engine's start on CPU puts its own answers over ours.
    if any(isinstance(mode, _CudaMeansCpu) for mode in _get_current_function_mode_stack()):  # type: ignore[no-untyped-call]
        return True
    from megatron.core.tensor_parallel import random as megatron_random

    for name, answer in _TORCH_CUDA.items():
        setattr(torch.cuda, name, answer)
    torch.cuda.random.get_rng_state = lambda device="cuda": _get_rng_state()
    torch.cuda.random.set_rng_state = lambda new_state, device="cuda": _set_rng_state(new_state)
    megatron_random._get_cuda_rng_state = _get_rng_state
    megatron_random._set_cuda_rng_state = _set_rng_state
    _CudaMeansCpu().__enter__()  # type: ignore[no-untyped-call]
    return True
