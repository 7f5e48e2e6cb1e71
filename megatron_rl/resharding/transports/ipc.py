"""Memory of other processes of the same node, opened through CUDA IPC: the receiver copies straight out of it.

Nothing is packed, staged or sent. What the wire's messages give for free has to be done here: nobody reads before every
sender's weights are final, and nobody changes them before every receiver has read (``fence``).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from megatron_rl.resharding.transports.selection import Place
from megatron_rl.resharding.transports.wire import wires_of

_DEVICE_ARGUMENT = 6
"""Of torch's ``rebuild_cuda_tensor``: the sender's number of its GPU."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A contiguous tensor in one of the shared storages."""

    storage: int
    first_byte: int
    num_elements: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Handles for other processes, picklable; valid as long as the tensors' storage lives where it is."""

    gpu: str
    """UUID."""
    storages: tuple[tuple[Callable[..., Tensor], tuple[Any, ...]], ...]
    """What opens each storage, as bytes. A trainer's parameters usually lie in one."""
    runs: Mapping[str, _Run]


def place_of(sources: Mapping[str, Tensor], device: torch.device, group: dist.ProcessGroup) -> Place:
    """Where this rank's weights lie."""
    wires = wires_of(group)
    if device.type != "cuda":
        return Place(host=_host(), gpu=None, wires=wires)
    visible = tuple(_uuid(index) for index in range(torch.cuda.device_count()))
    index = torch.cuda.current_device() if device.index is None else device.index
    return Place(
        host=_host(), gpu=visible[index], wires=wires, ipc_obstacle=ipc_obstacle(sources.values()), visible_gpus=visible
    )


def ipc_obstacle(tensors: Iterable[Tensor]) -> str | None:
    """Why another process could not open the memory of these tensors; None = it can.

    Memory of expandable segments is made of pages that can be given back one by one, and memory of vLLM's sleeping pool loses
    its pages on sleep: handles of either would not hold.
    """
    addresses = [tensor.data_ptr() for tensor in tensors if tensor.is_cuda]
    segments = torch.cuda.memory_snapshot() if addresses else []  # type: ignore[no-untyped-call]
    for address in addresses:
        held_by = next((s for s in segments if s["address"] <= address < s["address"] + s["total_size"]), None)
        if held_by is None or tuple(held_by["segment_pool_id"]) != (0, 0):
            return "the weights are in a memory pool of their own (vLLM's, for sleep?)"
        if held_by["is_expandable"]:
            return "the weights are in expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
    return None


def share(tensors: Mapping[str, Tensor]) -> SharedMemory:
    """Handles of contiguous tensors on one GPU."""
    storages: dict[int, Tensor] = {}
    runs = {}
    for name, tensor in tensors.items():
        whole = tensor.detach().untyped_storage()
        if whole.data_ptr() not in storages:
            storages[whole.data_ptr()] = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(whole)
        place, first_byte = list(storages).index(whole.data_ptr()), int(tensor.storage_offset()) * tensor.element_size()
        runs[name] = _Run(place, first_byte, tensor.numel(), tensor.dtype)
    return SharedMemory(_uuid(torch.cuda.current_device()), tuple(map(reduce_tensor, storages.values())), runs)


def open_shared(memory: SharedMemory) -> dict[str, Tensor]:
    """Flat tensors on the memory of another process of this node."""
    index = next(i for i in range(torch.cuda.device_count()) if _uuid(i) == memory.gpu)
    storages = []
    for rebuild, arguments in memory.storages:
        storages.append(rebuild(*arguments[:_DEVICE_ARGUMENT], index, *arguments[_DEVICE_ARGUMENT + 1 :]))
    opened = {}
    for name, run in memory.runs.items():
        last_byte = run.first_byte + run.num_elements * run.dtype.itemsize
        opened[name] = storages[run.storage][run.first_byte : last_byte].view(run.dtype)
    return opened


def fence(group: dist.ProcessGroup, flag: bool) -> bool:
    """Wait for this GPU and then for all ranks; whether any of them raised its flag. A collective over ``group``."""
    torch.cuda.synchronize()
    raised = torch.tensor(int(flag), device="cpu" if "gloo" in wires_of(group) else "cuda")
    dist.all_reduce(raised, dist.ReduceOp.MAX, group)
    return bool(raised.item())


def _host() -> str:
    """Containers of one machine share the boot id and not the name; they share no process memory either."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip() if boot.exists() else ''} {socket.gethostname()}"


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
