"""``megatron-rl env``: what is installed here, what is missing, and what each absence costs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from megatron_rl.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    state: str
    """What was found."""
    cost: str = ""
    """What its absence or its fault costs; empty where nothing is missing."""


def run(argv: list[str]) -> int:
    """Print the report; returns 0."""
    if argv:
        raise ConfigError([f"{argv[0]}: env takes no arguments"])
    table = Table(title="environment", title_justify="left", box=None, pad_edge=False)
    for heading in ("part", "found", "what its absence costs"):
        table.add_column(heading, overflow="fold")
    for finding in findings():
        table.add_row(finding.name, finding.state, finding.cost)
    Console().print(table)
    return 0


def findings() -> list[Finding]:
    """Device, libraries and the engine's private hooks. Imports torch and vLLM; builds nothing."""
    return [*_device(), _transformer_engine(), apex(importlib.util.find_spec), *_engine()]


def _device() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        return [Finding("device", "CPU, gloo", "no CUDA device: fp32 on gloo, for small models and tests")]
    flash = torch.backends.cuda.is_flash_attention_available()
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return [
        Finding("device", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"),
        Finding("NCCL", nccl),
        Finding("flash attention", "torch" if flash else "none", "" if flash else "attention falls back to slower kernels"),
    ]


def _transformer_engine() -> Finding:
    if importlib.util.find_spec("transformer_engine") is not None:
        return Finding("Transformer Engine", "installed", "not used by this release: layers are the local spec")
    return Finding("Transformer Engine", "absent", "torch's Adam instead of the fused one; nothing else in this release")


def apex(find_spec: Callable[[str], object]) -> Finding:
    """NVIDIA Apex, or the unrelated PyPI project of that name.

    Args:
        find_spec: ``importlib.util.find_spec``, or a stand-in.
    """
    if find_spec("apex") is None:
        return Finding("NVIDIA Apex", "absent", "nothing: it is a fallback for Transformer Engine's fused Adam")
    if find_spec("amp_C") is not None:
        return Finding("NVIDIA Apex", "installed")
    return Finding("NVIDIA Apex", "another package called apex", "remove it: pip uninstall apex; torch's Adam is used")


def _engine() -> list[Finding]:
    from megatron_rl.rollout.vllm_engine import probe_engine

    return [Finding(name, state) for name, state in probe_engine().items()]
