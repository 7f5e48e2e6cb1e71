"""Loading large libraries without what only makes it slower."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_UNUSED = ("wandb",)
"""Megatron-Core imports it for timers that nothing here calls: a second, and two temporary folders that a killed rank
leaves behind. ``observability`` imports it where a run logs to it."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import within: no garbage collection, and packages that are optional to others count as not installed.

    Torch, Megatron-Core and vLLM make millions of objects that all stay, and each collection would visit them again.
    A package that is loaded already stays loaded.
    """
    collects = gc.isenabled()
    hidden = [name for name in _UNUSED if name not in sys.modules]
    gc.disable()
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if collects:
            gc.enable()
