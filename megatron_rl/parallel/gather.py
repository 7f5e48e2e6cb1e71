"""Every rank's value, known to all of them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup


def gather_objects[T](value: T, group: ProcessGroup) -> dict[int, T]:
    """Every rank's picklable value by global rank, in the order of the group.

    Collectives: all ranks of ``group``.
    """
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return dict(zip(dist.get_process_group_ranks(group), values, strict=True))
