"""Which way leads from one rank to another: a pure function of where both lie, so every rank decides alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

TransportName = Literal["auto", "nccl", "ipc", "gloo"]
"""What can be asked for."""
WireName = Literal["nccl", "gloo"]
"""Two-sided messages, packed by the sender and unpacked by the receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a rank tells the others. Example: ``Place(host="3f1c", gpu="GPU-77e0", wires=("nccl", "gloo"))``."""

    host: str
    """Same for all processes of one running machine."""
    gpu: str | None
    """UUID of the GPU that holds this rank's weights; None on CPU."""
    wires: tuple[WireName, ...]
    """Of the group that spans all ranks, the best first."""
    ipc_obstacle: str | None = None
    """Why other processes cannot open the memory of its source parameters; None = they can."""
    visible_gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs this process may use."""


def choose_wire(asked: TransportName, places: Mapping[int, Place]) -> WireName:
    """The wire for all pairs that do not go through shared memory.

    Raises ValueError where the wire asked for does not exist in the group.
    """
    common = [wire for wire in next(iter(places.values())).wires if all(wire in place.wires for place in places.values())]
    on_gpu = all(place.gpu is not None for place in places.values())
    if asked in ("nccl", "gloo") and asked not in common:
        raise ValueError(f"weight_sync.transport={asked}: this job's process group has {', '.join(common)} only; use auto")
    if asked == "gloo" or not on_gpu or "nccl" not in common:
        return "gloo" if "gloo" in common else "nccl"
    return "nccl"


def ipc_pairs(
    asked: TransportName, places: Mapping[int, Place], pairs: Iterable[tuple[int, int]]
) -> tuple[frozenset[tuple[int, int]], dict[tuple[int, int], str]]:
    """Pairs (source rank, destination rank) that share memory, and for the others why not.

    ``ipc`` takes it wherever it works. ``auto`` takes it between two processes of one GPU, where NCCL refuses to; between
    GPUs NCCL does the same over the same links.
    Raises ValueError where two ranks of one GPU would have to use NCCL.
    """
    shared, reasons = set(), {}
    for pair in sorted(set(pairs)):
        source, destination = (places[rank] for rank in pair)
        same_gpu = source.gpu is not None and (source.host, source.gpu) == (destination.host, destination.gpu)
        obstacle = _obstacle(source, destination)
        if obstacle is None and (asked == "ipc" or (asked == "auto" and same_gpu)):
            shared.add(pair)
            continue
        if same_gpu and choose_wire(asked, places) == "nccl":
            raise ValueError(
                f"ranks {pair[0]} and {pair[1]} share one GPU, where NCCL does not work, "
                + (f"and neither does CUDA IPC: {obstacle}" if obstacle else "but weight_sync.transport=nccl; use auto")
            )
        reasons[pair] = obstacle or f"weight_sync.transport={asked}"
    return frozenset(shared), reasons


def _obstacle(source: Place, destination: Place) -> str | None:
    if source.gpu is None or destination.gpu is None:
        return "the weights are on CPU"
    if source.host != destination.host:
        return "the ranks are on different hosts"
    if source.gpu not in destination.visible_gpus:
        return "the receiver cannot see the sender's GPU (CUDA_VISIBLE_DEVICES)"
    return source.ipc_obstacle
