"""The layouts that a configuration asks for, on a world of a given size."""

from __future__ import annotations

from megatron_rl.config.parallel import ParallelConfig
from megatron_rl.config.rollout import RolloutConfig
from megatron_rl.config.world import data_degree
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout


def role_layout(parallel: ParallelConfig, world_size: int) -> ParallelLayout:
    """A Megatron role over all ranks, in natural rank order."""
    return ParallelLayout(
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        data=data_degree(parallel, world_size),
        context=parallel.context,
        virtual_pipeline=parallel.virtual_pipeline or 1,
        expert=parallel.expert,
        expert_tensor=parallel.expert_tensor,
        sequence_parallel=parallel.sequence_parallel,
    )


def engine_layout(rollout: RolloutConfig, world_size: int) -> RolloutLayout:
    """The TP x DP grid of the engines over all ranks."""
    tensor = rollout.tensor_parallel_size
    return RolloutLayout(tensor=tensor, data=rollout.data_parallel_size or world_size // tensor)
