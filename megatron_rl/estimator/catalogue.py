"""GPUs and fabrics by name, from the JSON files beside this module."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.spelling import nearest_choice

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A link between two GPUs, or between a GPU and its host. Example: NVLink 4, 450 GB/s each way."""

    name: str
    bytes_per_s: float
    """One way, per GPU."""
    latency_s: float
    """Of one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a card can hold and do at most."""

    name: str
    memory_bytes: int
    """As CUDA reports it, about."""
    peak_flops_per_s: float
    """Dense bf16."""
    memory_bytes_per_s: float
    intra_node: Fabric
    inter_node: Fabric
    host_link: Fabric
    gpus_per_node: int
    assumed_usd_per_hour: float
    """A round placeholder, not a quote."""


def _table(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((files("megatron_rl.estimator") / "data" / name).read_text())
    del table["_"]
    return table


@cache
def fabrics() -> dict[str, Fabric]:
    """Every known fabric by name."""
    return {
        name: Fabric(name=name, bytes_per_s=row["gb_per_s"] * 1e9, latency_s=row["latency_us"] * 1e-6)
        for name, row in _table("fabrics.json").items()
    }


@cache
def gpus() -> dict[str, Gpu]:
    """Every known GPU by its full name."""
    links = fabrics()
    return {
        name: Gpu(
            name=name,
            memory_bytes=round(row["memory_gib"] * GIB),
            peak_flops_per_s=row["bf16_tflop_per_s"] * 1e12,
            memory_bytes_per_s=row["hbm_tb_per_s"] * 1e12,
            intra_node=links[row["intra_node"]],
            inter_node=links[row["inter_node"]],
            host_link=links[row["host_link"]],
            gpus_per_node=row["gpus_per_node"],
            assumed_usd_per_hour=row["assumed_usd_per_hour"],
        )
        for name, row in _table("gpus.json").items()
    }


@cache
def _names() -> dict[str, str]:
    """Lower-case spelling -> full name; a short name such as A100 means its most common card."""
    spellings = {alias.lower(): name for name, row in _table("gpus.json").items() for alias in row["aliases"]}
    return spellings | {name.lower(): name for name in gpus()}


def abbreviates(short: str, full: str) -> bool:
    """Whether ``short`` is ``full`` without its size, in any case. Example: A100 abbreviates A100-40GB."""
    return full.lower().startswith(f"{short.lower()}-")


def find_gpu(name: str, key: str = "gpu") -> Gpu:
    """Look a GPU up by full or short name, in any case. Raises ConfigError naming ``key`` and the nearest names."""
    full = _names().get(name.lower())
    if full is None:
        close = nearest_choice(name.lower(), _names())
        advice = f" (did you mean {_names()[close]}?)" if close else ""
        raise ConfigError([f"{key}={name}: no such GPU{advice}; known: {', '.join(gpus())}"])
    return gpus()[full]
