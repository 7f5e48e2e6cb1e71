"""``megatron-rl env``: what is installed here, what is missing, and what each absence costs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

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
    """Print the report as a table, or with ``--json`` as a list of objects; returns 0."""
    if argv not in ([], ["--json"]):
        raise ConfigError([f"{' '.join(argv)}: env takes no argument but --json"])
    # Libraries announce themselves on standard output when they are imported.
    with contextlib.redirect_stdout(sys.stderr):
        found = findings()
    if argv:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
        return 0
    table = Table(title="environment", title_justify="left", box=None, pad_edge=False)
    for heading in ("part", "found", "what its absence costs"):
        table.add_column(heading, overflow="fold")
    for finding in found:
        table.add_row(finding.name, finding.state, finding.cost)
    Console().print(table)
    return 0


def findings() -> list[Finding]:
    """Device, libraries and the engine's private hooks. Imports torch, Transformer Engine and vLLM; builds nothing."""
    import torch

    from megatron_rl.models.transformer_impl import has_apex_accumulation, transformer_engine_fault

    on_cuda = torch.cuda.is_available()
    fault = transformer_engine_fault()
    return [
        *_device(),
        transformer_engine(fault, _version("transformer-engine"), on_cuda),
        layers(fault, on_cuda, has_apex_accumulation()),
        apex(importlib.util.find_spec, needed=fault is not None and on_cuda),
        *(_attention_kernels() if on_cuda else []),
        _triton(on_cuda),
        *_engine(),
    ]


def _device() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        return [Finding("device", "CPU, gloo", "no CUDA device: fp32 on gloo, for small models and tests")]
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    gpus = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"
    return [Finding("device", gpus), Finding("NCCL", nccl)]


def transformer_engine(fault: str | None, installed: str | None, on_cuda: bool) -> Finding:
    """Transformer Engine, and what goes without it.

    Args:
        fault: why it cannot be used, None if it can.
        installed: version of the distribution, None if there is none.
        on_cuda: whether this host computes on a GPU.
    """
    name = "Transformer Engine"
    if fault is None:
        return Finding(name, installed or "installed", "" if on_cuda else "unused: it computes on CUDA only")
    if not on_cuda:
        return Finding(name, "absent", "nothing on a CPU")
    state = "absent" if installed is None else f"{installed}, broken"
    lost = "slower attention and Adam; no 16-bit optimizer state; no gradients added inside the product"
    return Finding(name, state, lost if installed is None else f"{lost} ({fault})")


def layers(fault: str | None, on_cuda: bool, apex_accumulation: bool) -> Finding:
    """Which layers ``model.transformer_impl=auto`` builds here."""
    if on_cuda and fault is None:
        return Finding("layers (auto)", "Transformer Engine in bf16 from hidden_size 1536, else local")
    accumulation = ", gradients added inside the product by NVIDIA Apex" if on_cuda and apex_accumulation else ""
    return Finding("layers (auto)", f"local{accumulation}")


def apex(find_spec: Callable[[str], object], *, needed: bool) -> Finding:
    """NVIDIA Apex, or the unrelated PyPI project of that name.

    Args:
        find_spec: ``importlib.util.find_spec``, or a stand-in.
        needed: whether this host would use it, having a GPU but no Transformer Engine.
    """
    name = "NVIDIA Apex"
    if find_spec("apex") is None:
        lost = "torch's Adam; gradients take a pass of their own into the f32 buffer"
        return Finding(name, "absent", lost if needed else "nothing: it stands in for Transformer Engine on a GPU")
    if find_spec("amp_C") is not None:
        return Finding(name, "installed")
    return Finding(name, "another package called apex", "remove it: pip uninstall apex; torch's Adam is used")


def _attention_kernels() -> list[Finding]:
    import torch

    flash = torch.backends.cuda.is_flash_attention_available()
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    package = _version("flash-attn")
    return [
        Finding(
            "attention: torch varlen",
            "flash" if flash else "none",
            "" if flash else "layers attend document by document: much slower",
        ),
        Finding(
            "attention: cuDNN",
            "absent" if cudnn is None else str(cudnn),
            "Transformer Engine's packed attention cannot run" if cudnn is None else "",
        ),
        Finding(
            "attention: flash_attn",
            package or "absent",
            "" if package else "nothing: torch and cuDNN bring their own",
        ),
    ]


def _triton(on_cuda: bool) -> Finding:
    installed = _version("triton")
    lost = (
        "the fused kernels (LM head, rotation, activation, weight sync) cannot run: install triton"
        if on_cuda
        else "nothing on a CPU"
    )
    return Finding("Triton", installed or "absent", "" if installed else lost)


def _engine() -> list[Finding]:
    from megatron_rl.rollout.vllm_engine import probe_engine

    return [Finding(name, state, _engine_cost(name, state)) for name, state in probe_engine().items()]


def _engine_cost(name: str, state: str) -> str:
    if state == "not installed":
        return "no rollouts: train, generate and evaluate cannot run" if name == "vllm" else ""
    return "this version of vLLM lacks what the engine relies on: install the pinned one" if state == "MISSING" else ""


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
