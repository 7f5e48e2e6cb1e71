"""Everything read from, and written into, process environments.

Functions take the environment as an argument, so that nothing here depends on the process they run in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from megatron_rl.runtime.processes import start_ticks

ATTEMPT = "MEGATRON_RL_ATTEMPT"
"""Name of one start of a job; equal on all its ranks and in no other job. May be set by the user under other launchers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideLaunch:
    """This process is a rank that torchrun, srun or the like started."""

    rank: int
    world_size: int
    attempt: str
    """See ``ATTEMPT``."""


def whole_number(environ: Mapping[str, str], name: str) -> int | None:
    """A variable that holds a count or a place; None where it is unset or empty. Raises ValueError naming it."""
    text = environ.get(name, "")
    if text and not text.isdecimal():
        raise ValueError(f"{name}={text} in the environment: must be a whole number; correct it, or unset it")
    return int(text) if text else None


def outside_launch(environ: Mapping[str, str]) -> OutsideLaunch | None:
    """The rank this process is; None where it was started by hand.

    Raises ValueError for numbers that are none, and where ranks could not recognise each other's attempt.
    """
    rank, world_size = whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE") or 1
    if rank is None:
        return None
    attempt = _attempt(environ, world_size)
    if attempt is None:
        raise ValueError(
            f"RANK is set (world of {world_size}), but nothing names this start of the job: "
            f"give torchrun --rdzv-id=<unique>, or set {ATTEMPT}=<unique> on every rank"
        )
    return OutsideLaunch(rank=rank, world_size=world_size, attempt=attempt)


def _attempt(environ: Mapping[str, str], world_size: int) -> str | None:
    """A text equal on all ranks of this start and different in every other one."""
    if environ.get(ATTEMPT):
        return environ[ATTEMPT]
    if world_size == 1:
        return uuid4().hex
    parts = []
    if "SLURM_JOB_ID" in environ:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        parts += [environ.get(name, "0") for name in names]
    if environ.get("TORCHELASTIC_RUN_ID", "none") != "none":
        parts.append(environ["TORCHELASTIC_RUN_ID"])
    if environ.get("LOCAL_WORLD_SIZE") == str(world_size):
        parts.append(_parent_start())
    if not parts:
        return None
    return "-".join([*parts, environ.get("TORCHELASTIC_RESTART_COUNT", "0")])


def _parent_start() -> str:
    """Process id and start time of the agent that started the local ranks."""
    parent = os.getppid()
    return f"{parent}.{start_ticks(parent) or 0}"


def num_visible_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs this process may use, counted from device files so that no driver has to be loaded."""
    present = [path for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()]
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not present:
        return len(present)
    return sum(1 for name in chosen.split(",") if name.strip() and name.strip() != "-1")


def worker_environment(
    base: Mapping[str, str], *, attempt: str, on_gpu: bool, ranks_per_node: int, kv_cache_gib: float | None
) -> dict[str, str]:
    """Environment of the ranks: ``base`` wins where a user may have a reason to differ.

    Args:
        base: environment of the launching process.
        attempt: unique name of this start; keeps shared memory and sockets of concurrent runs apart.
        on_gpu: whether the ranks compute on GPUs.
        ranks_per_node: ranks that share this host's cores.
        kv_cache_gib: KV cache of each CPU engine, GiB; None = 1.
    """
    threads = 1 if not on_gpu else max(1, min(8, (os.cpu_count() or 1) // ranks_per_node))
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": str(threads > 1).lower(),
        "RAYON_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    if on_gpu:
        defaults |= {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        if "PYTORCH_ALLOC_CONF" not in base:
            # Packs of ever new lengths would leave holes in fixed segments.
            defaults["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    else:
        defaults |= {
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(kv_cache_gib or 1))),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Megatron's fused functions would be traced and built with g++ by every rank: longer than a small run takes.
            "TORCH_COMPILE_DISABLE": "1",
            # vLLM's notice that it binds memory to a NUMA node, from C++, where logging settings do not reach.
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
    fixed = {ATTEMPT: attempt, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if not on_gpu:
        fixed["CUDA_VISIBLE_DEVICES"] = ""
    return {**defaults, **base, **fixed}
