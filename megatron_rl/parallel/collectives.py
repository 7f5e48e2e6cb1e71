"""The few collectives a role needs outside Megatron, named by what they mean in its grid."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.parallel.groups import RoleGroups


def sum_over_data(x: Tensor, groups: RoleGroups) -> Tensor:
    """Add up, in place, what each data-parallel rank holds; all of them get the sum.

    Collectives: the data-parallel group.
    """
    dist.all_reduce(x, group=groups.collection.dp_cp)
    return x


def max_over_data(x: Tensor, groups: RoleGroups) -> Tensor:
    """Largest value over data-parallel ranks, in place.

    Collectives: the data-parallel group.
    """
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=groups.collection.dp_cp)
    return x


def _last_stage_rank(groups: RoleGroups) -> int:
    return dist.get_process_group_ranks(groups.collection.pp)[-1]


def broadcast_from_last_stage(x: Tensor, groups: RoleGroups) -> Tensor:
    """Give every pipeline stage the last stage's tensor, in place; shapes must agree.

    Collectives: the pipeline group.
    """
    if groups.layout.pipeline > 1:
        dist.broadcast(x, src=_last_stage_rank(groups), group=groups.collection.pp)
    return x


def broadcast_object_from_last_stage(value: object, groups: RoleGroups) -> object:
    """Give every pipeline stage the last stage's (small, picklable) object.

    Collectives: the pipeline group.
    """
    if groups.layout.pipeline == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=_last_stage_rank(groups), group=groups.collection.pp)
    return box[0]


def first_difference(tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> list[str]:
    """Names of tensors that are not bit-equal on all ranks of a group.

    Compares exact sums of the tensors' bits, position-weighted so that swapped elements are seen too.

    Collectives: two all-reduces over the group, which must hold the same names in the same order.
    """
    if not tensors or group.size() == 1:
        return []
    digests = torch.stack([_digest(tensor) for tensor in tensors.values()])
    highest, lowest = digests.clone(), digests.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN, group=group)
    differs = (highest != lowest).tolist()
    return [name for name, differ in zip(tensors, differs, strict=True) if differ]


_WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _digest(tensor: Tensor) -> Tensor:
    """I64 scalar of a tensor's bits; wrap-around arithmetic, so exact and independent of the order of summation."""
    words = tensor.detach().reshape(-1).view(_WORD[tensor.element_size()]).to(torch.int64)
    weights = torch.arange(1, words.numel() + 1, device=words.device) * 0x9E3779B1 + 0x7F4A7C15
    return (words * weights).sum()
