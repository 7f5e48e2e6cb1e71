"""What the last pipeline stage keeps of its micro-batches, made known to every rank of the role.

Shape suffixes: B samples, S padded tokens, N predicted tokens of a pack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from megatron_rl.data.packing import Packer
from megatron_rl.parallel.collectives import (
    broadcast_from_last_stage,
    broadcast_object_from_last_stage,
    max_over_data,
    sum_over_data,
)
from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.training.loss_closures import PartialMetrics
from megatron_rl.types.batches import PackedTokens
from megatron_rl.types.metrics import Metric, Metrics

Kept = Mapping[str, Tensor]
"""Of one micro-batch: ``output:0 ...`` values of its predicted tokens, and ``sum:NAME`` or ``max:NAME`` metrics."""

_OUTPUT = "output:"


def keep_outputs(outputs_N: Iterable[Tensor]) -> dict[str, Tensor]:
    """Values of each predicted token, to be gathered in this order."""
    return {f"{_OUTPUT}{i}": values_N for i, values_N in enumerate(outputs_N)}


def keep_metrics(metrics: PartialMetrics) -> dict[str, Tensor]:
    """F32 scalars, to be reduced as they say."""
    return {f"{kind}:{name}": value.detach().float() for name, (value, kind) in metrics.items()}


def gather_outputs(
    packer: Packer, packs: Sequence[PackedTokens], kept: Sequence[Kept], num_outputs: int, groups: RoleGroups
) -> Tensor:
    """Outputs of all micro-batches and data-parallel ranks, in token coordinates.

    Args:
        packer: made the packs.
        packs: of this rank.
        kept: of each pack; read on the last stage only.
        num_outputs: kept of every pack.
        groups: of the role.

    Returns f32 ``[num_outputs, B, S]`` on every rank, where the batch's tokens lie; 0 where nothing was predicted.

    Collectives: the data-parallel group of the last stage, the pipeline group.
    """
    answers = torch.zeros((num_outputs, *packer.tokens_BS.shape), device=packer.device)
    if groups.is_last_stage:
        for i in range(num_outputs):
            answers[i] = packer.unpack((pack, part[f"{_OUTPUT}{i}"]) for pack, part in zip(packs, kept, strict=True))
        sum_over_data(answers, groups)
    return broadcast_from_last_stage(answers, groups).to(packer.tokens_BS.device)


def reduce_metrics(kept: Sequence[Kept], groups: RoleGroups) -> Metrics:
    """Join the metrics of all micro-batches and data-parallel ranks, and tell every stage.

    Collectives: the data-parallel group of the last stage, the pipeline group.
    """
    values: object = None
    if groups.is_last_stage:
        keys = sorted(key for key in kept[0] if not key.startswith(_OUTPUT))
        table = torch.stack([torch.stack([part[key].reshape(()) for key in keys]) for part in kept]) if keys else None
        values = {} if table is None else _joined(keys, table, groups)
    joined = broadcast_object_from_last_stage(values, groups)
    assert isinstance(joined, dict)
    return joined


def _joined(keys: list[str], table: Tensor, groups: RoleGroups) -> Metrics:
    """``table`` is ``[micro-batches, keys]``."""
    sums = sum_over_data(table.sum(0), groups).tolist()
    tops = max_over_data(table.amax(0), groups).tolist()
    metrics: Metrics = {}
    for key, total, top in zip(keys, sums, tops, strict=True):
        kind, name = key.split(":", 1)
        if kind == "sum":
            # Parts of one optimizer step add up; several steps are averaged.
            metrics[name] = Metric(total)
        else:
            assert kind == "max", f"metric {name}: only sum and max can be joined over micro-batches, got {kind}"
            metrics[name] = Metric(top, "max")
    return metrics
