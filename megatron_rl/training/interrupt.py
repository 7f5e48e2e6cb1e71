"""Turning a signal on any rank into one decision at a step boundary."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from megatron_rl.runtime.processes import STOP_SIGNALS


class InterruptFlag:
    """Listens for ``STOP_SIGNALS`` while it is entered; ranks agree on it at step boundaries and between gen batches."""

    def __init__(self, group: ProcessGroup) -> None:
        """Not listening yet; ``group`` covers all ranks and carries CPU tensors (gloo)."""
        self._group = group
        self._received = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> InterruptFlag:
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._received = True

    def any_rank(self) -> bool:
        """Whether any rank was signalled; enters one all-reduce over the group."""
        flag = torch.tensor([int(self._received)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())
