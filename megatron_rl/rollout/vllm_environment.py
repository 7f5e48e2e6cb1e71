"""Environment variables of the in-process vLLM engine, set in one place before vLLM is imported."""

from __future__ import annotations

import importlib.util
import os
from typing import Literal

_ALWAYS = {
    # The engine core runs in this process: weights are shared in place, and ranks stay in lock step.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Everything is read from the model folder; compute nodes may have no network.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_CPU = {
    # Thread counts and placement are the launcher's business.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_QUIET = {"cpu": "ERROR", "cuda": "WARNING"}
"""On CPU the warnings are about preloaded allocators and missing GPU features: nothing a user can act on."""


def set_engine_environment(device_type: Literal["cpu", "cuda"]) -> None:
    """Prepare this process for vLLM. A log level chosen by the user is kept."""
    os.environ.update(_ALWAYS)
    if device_type == "cpu":
        os.environ.update(_CPU)
        # An engine-wide cache size would override the budget of this run.
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    elif importlib.util.find_spec("flashinfer") is None:
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", _QUIET[device_type])
