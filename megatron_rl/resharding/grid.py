"""The layout pairs that a grid report covers: 8 ranks, dense and mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.fabric import Fabric
from megatron_rl.resharding.report import ReshardReport, report_reshard

DENSE_TRAIN = (
    ParallelLayout(data=8),
    ParallelLayout(tensor=2, data=4),
    ParallelLayout(tensor=4, data=2),
    ParallelLayout(tensor=8),
    ParallelLayout(tensor=2, context=2, data=2),
    ParallelLayout(pipeline=2, data=4),
    ParallelLayout(tensor=2, pipeline=2, data=2),
    ParallelLayout(tensor=2, pipeline=2, virtual_pipeline=2, data=2),
    ParallelLayout(tensor=4, pipeline=2),
    ParallelLayout(tensor=2, pipeline=4),
)
EXPERT_TRAIN = (
    ParallelLayout(data=8, expert=8),
    ParallelLayout(tensor=2, data=4, expert=4, expert_tensor=2),
    ParallelLayout(tensor=2, data=4, expert=8, expert_tensor=1),
    ParallelLayout(tensor=4, data=2, expert=8, expert_tensor=1),
    ParallelLayout(tensor=2, pipeline=2, data=2, expert=4, expert_tensor=1),
)
ROLLOUT = tuple(RolloutLayout(tensor=tensor, data=8 // tensor) for tensor in (1, 2, 4, 8))


@dataclass(frozen=True, slots=True)
class GridEntry:
    """One pair of layouts, in the engine's natural rank order and with the placement chosen."""

    natural: ReshardReport
    permuted: ReshardReport


def grid_layouts(model: ModelConfig) -> Iterator[tuple[ParallelLayout, RolloutLayout]]:
    """Pairs for one shape: 40 for a dense model; for experts 35, cut by TP or spread whole over the engine."""
    if model.moe is None:
        yield from product(DENSE_TRAIN, ROLLOUT)
        return
    for train, rollout in product(EXPERT_TRAIN, ROLLOUT):
        yield train, rollout
        if rollout.tensor > 1:
            yield train, replace(rollout, expert=rollout.tensor)


def report_grid(model: ModelConfig, fabric: Fabric, *, itemsize: int = 2, budget_bytes: int = 256 << 20) -> list[GridEntry]:
    """Report every pair of ``grid_layouts``. Raises ValueError naming the key where one does not divide the shape."""
    return [
        GridEntry(
            *(
                report_reshard(model, train, rollout, fabric, itemsize=itemsize, budget_bytes=budget_bytes, permute=permute)
                for permute in (False, True)
            )
        )
        for train, rollout in grid_layouts(model)
    ]
