"""What this process computes on: device, compute dtype, collective backend, peak speed; joining the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from megatron_rl.config.rank_contract import NODES
from megatron_rl.runtime.cpu import install_cpu_runtime
from megatron_rl.runtime.roll_call import meet

_PEAK_BF16_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "B200": 2250e12,
}
"""Dense bf16 FLOP/s by a substring of the device's name (vendor data sheets)."""


@dataclass(frozen=True, slots=True)
class Platform:
    """Device, dtype and backend of this process.

    Example: ``Platform(torch.device("cuda", 3), torch.bfloat16, "nccl", 989e12)``.
    """

    device: torch.device
    dtype: torch.dtype
    """Of weights and activations; optimizer state and log-probs are always f32."""
    backend: Literal["gloo", "nccl"]
    peak_flops_per_s: float | None
    """Dense peak of the compute dtype; None where unknown (utilisation is then not reported)."""

    @classmethod
    def detect(
        cls,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        local_rank: int = 0,
    ) -> Platform:
        """Choose for this host and prepare it: the CPU answers where there is no GPU, else the rank's CUDA device.

        Raises ValueError where ``trainer.device`` asks for a device the host lacks.
        """
        has_cuda = torch.cuda.is_available()
        if device == "cuda" and not has_cuda:
            raise ValueError("trainer.device=cuda, but torch finds no CUDA device; use trainer.device=auto or cpu")
        if device == "cpu" and has_cuda:
            raise ValueError(
                "trainer.device=cpu on a host with CUDA: hide the GPUs with CUDA_VISIBLE_DEVICES= or use trainer.device=auto"
            )
        on_cuda = not install_cpu_runtime()
        chosen = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(dtype, torch.bfloat16 if on_cuda else torch.float32)
        if not on_cuda:
            return cls(torch.device("cpu"), chosen, "gloo", None)
        torch.cuda.set_device(local_rank)
        return cls(torch.device("cuda", local_rank), chosen, "nccl", _peak_flops(torch.cuda.get_device_name(), chosen))


def _peak_flops(device_name: str, dtype: torch.dtype) -> float | None:
    peak = next((flops for name, flops in _PEAK_BF16_FLOPS.items() if name in device_name), None)
    return peak if peak is None or dtype == torch.bfloat16 else peak / 2


def init_distributed(
    platform: Platform, timeout_s: float, environ: Mapping[str, str] = os.environ, rendezvous_timeout_s: float = 300.0
) -> None:
    """Join the job described by torchrun's variables, or become a job of one process without them.

    A job of one meets itself in its own memory, so that no port is taken and no file is left. Ranks whose launcher tells
    the names of the nodes call the roll first, since no torchrun waits for them. Does nothing if already joined.

    Collectives: every rank of the job must call it.
    """
    if dist.is_initialized():
        return
    timeout = timedelta(seconds=timeout_s)
    backend = "cpu:gloo,cuda:nccl" if platform.backend == "nccl" else "gloo"
    device_id = platform.device if platform.backend == "nccl" else None
    if NODES in environ:
        rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        store = meet(environ, rendezvous_timeout_s)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout, device_id=device_id)
        return
    if "WORLD_SIZE" in environ and "RANK" in environ:
        dist.init_process_group(backend, timeout=timeout, device_id=device_id)
        return
    alone = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=timeout, device_id=device_id)
