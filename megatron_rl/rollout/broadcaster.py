"""vLLM's broadcaster of Python objects between tensor-parallel ranks, which ranks in lock step never need."""

from __future__ import annotations

from pathlib import Path


def drop_broadcaster() -> None:
    """Part with the engine's broadcaster: its shared memory, and its writer's sockets, files that not even closing removes."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    queue, group.mq_broadcaster = group.mq_broadcaster, None
    if queue is not None and queue._is_writer:
        for address in (queue.handle.local_subscribe_addr, queue.handle.local_notify_addr):
            if address is not None:
                Path(address.removeprefix("ipc://")).unlink(missing_ok=True)
