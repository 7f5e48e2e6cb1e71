"""Bytes and waiting of the sends and receives between pipeline stages.

Waiting is what the compute stream stood still for: between two CUDA events around each exchange, or by the clock on CPU. It
contains the transfer itself. An interleaved schedule that overlaps its exchanges waits elsewhere; those count as bytes only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from torch import Tensor


class SendRecvMeter:
    """Adds up over all roles of this process."""

    def __init__(self) -> None:
        """Nothing has been sent."""
        self._bytes = 0
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the body as waiting. Syncs: nothing."""
        if torch.cuda.is_available():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            yield
            end.record()
            self._events.append((begin, end))
        else:
            start = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start

    def count(self, *tensors: Tensor | None) -> None:
        """Add tensors that were sent or received."""
        self._bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)

    def flush(self) -> tuple[int, float]:
        """Bytes and seconds since the last flush; on a GPU the device must be idle."""
        seconds = self._seconds + sum(begin.elapsed_time(end) for begin, end in self._events) / 1e3
        found = self._bytes, seconds
        self._bytes, self._seconds, self._events = 0, 0.0, []
        return found


PIPELINE_METER = SendRecvMeter()
"""Of this process: Megatron makes a communicator for every pass, so the count outlives each."""


class MeteredP2P(P2PCommunicator):  # type: ignore[misc]
    """Megatron's communicator between neighbouring stages, with a meter."""

    def _communicate(self, **exchange: Any) -> tuple[Tensor | None, Tensor | None, Any]:
        with PIPELINE_METER.waiting():
            from_previous, from_next, requests = super()._communicate(**exchange)
        PIPELINE_METER.count(exchange["tensor_send_next"], exchange["tensor_send_prev"], from_previous, from_next)
        return from_previous, from_next, requests
