"""Two-sided messages over a process group: one call starts all sends and receives of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.resharding.transports.selection import WireName


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A contiguous buffer on the wire, the peer's global rank, and the number of the transfer in its round."""

    buffer: Tensor
    peer: int
    tag: int


class Wire(Protocol):
    """What carries a round."""

    device: torch.device
    """Where buffers must be."""

    def post(self, sends: Sequence[Endpoint], receives: Sequence[Endpoint]) -> list[dist.Work]:
        """Start all; a buffer may be used again once its work has been waited for."""


class GlooWire:
    """Single sends and receives between hosts' memories."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.device = torch.device("cpu")
        self._group = group

    def post(self, sends: Sequence[Endpoint], receives: Sequence[Endpoint]) -> list[dist.Work]:
        """See ``Wire.post``."""
        works = [dist.irecv(end.buffer, end.peer, self._group, end.tag) for end in receives]
        works += [dist.isend(end.buffer, end.peer, self._group, end.tag) for end in sends]
        return [work for work in works if work is not None]


class NcclWire:
    """One NCCL group per round, on the current GPU."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._group = group

    def post(self, sends: Sequence[Endpoint], receives: Sequence[Endpoint]) -> list[dist.Work]:
        """See ``Wire.post``."""
        operations = [dist.P2POp(dist.isend, end.buffer, end.peer, self._group) for end in sends]
        operations += [dist.P2POp(dist.irecv, end.buffer, end.peer, self._group) for end in receives]
        return list(dist.batch_isend_irecv(operations)) if operations else []


def open_wire(name: WireName, group: dist.ProcessGroup) -> Wire:
    """The wire of that name over ``group``."""
    return NcclWire(group) if name == "nccl" else GlooWire(group)


def wires_of(group: dist.ProcessGroup) -> tuple[WireName, ...]:
    """What a group can carry, GPU memory first. A job's main group on GPUs has both."""
    backends = dist.get_backend_config(group)
    names: tuple[WireName, ...] = ("nccl", "gloo")
    return tuple(name for name in names if name in backends)
