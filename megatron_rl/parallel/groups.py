"""Layouts made into process groups, and the one place that answers for Megatron's global parallel state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch.distributed import ProcessGroup

from megatron_rl.parallel.layout import Coordinates, ParallelLayout

_TRACKED_STATE = "model-parallel-rng"


@dataclass
class GroupRegistry:
    """Process groups by rank list, so that roles with equal groups share one communicator.

    Every rank of the job must ask for the same rank lists in the same order.
    """

    _groups: dict[tuple[int, ...], ProcessGroup] = field(default_factory=dict)

    def get(self, ranks: tuple[int, ...]) -> ProcessGroup:
        """Group over ``ranks``; created on first use.

        Collectives: creation enters a world collective, also on ranks outside the list.
        """
        if ranks not in self._groups:
            self._groups[ranks] = dist.new_group(list(ranks))
        return self._groups[ranks]

    def mine(self, rank_lists: Iterable[tuple[int, ...]]) -> ProcessGroup | None:
        """Create all groups of a partition of the ranks and return the one this process is in."""
        rank = dist.get_rank()
        found = None
        for ranks in rank_lists:
            group = self.get(ranks)
            if rank in ranks:
                found = group
        return found


def _embedding_ranks(stages: tuple[int, ...]) -> tuple[int, ...]:
    """First and last stage of a pipeline: the holders of tied embeddings."""
    return stages if len(stages) == 1 else (stages[0], stages[-1])


@dataclass(frozen=True)
class RoleGroups:
    """Process groups of one role on this rank.

    On a rank outside the layout ``coordinates`` is None and no group may be used.
    """

    layout: ParallelLayout
    coordinates: Coordinates | None
    collection: ProcessGroupCollection
    """What Megatron-Core takes."""
    role: ProcessGroup
    """All ranks of the role."""

    @classmethod
    def build(cls, layout: ParallelLayout, registry: GroupRegistry) -> RoleGroups:
        """Create (or reuse) every group of a layout.

        Collectives: all ranks of the job call it, with the same layouts in the same order.
        Raises ValueError where the layout needs more ranks than the job has.
        """
        world = dist.get_world_size()
        if layout.offset + layout.world_size > world:
            raise ValueError(
                f"a layout of tensor={layout.tensor} * context={layout.context} * data={layout.data} * "
                f"pipeline={layout.pipeline} from rank {layout.offset} needs {layout.offset + layout.world_size} ranks, "
                f"but the job has {world}"
            )
        rank = dist.get_rank()
        whole = registry.get(tuple(layout.ranks))
        return cls(
            layout=layout,
            coordinates=layout.coordinates(rank) if rank in layout.ranks else None,
            collection=_collection(layout, registry, whole),
            role=whole,
        )

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank's pipeline stage holds the head."""
        return self.coordinates is not None and self.coordinates.pipeline == self.layout.pipeline - 1

    @contextmanager
    def as_megatron_globals(self) -> Iterator[None]:
        """Answer for Megatron's global parallel state with this role's groups, then put the old answers back.

        Most of Megatron takes the collection as an argument; saving tied embeddings and a few layers still ask the
        globals.
        """
        answers = _global_answers(self.collection, self.layout)
        saved = {name: vars(parallel_state)[name] for name in answers}
        vars(parallel_state).update(answers)
        _complete_process_state()
        try:
            yield
        finally:
            vars(parallel_state).update(saved)


def _complete_process_state() -> None:
    """Give Megatron the two per-process objects it insists on, whatever the layout.

    The random-state tracker is entered by dropout, which is off here (scoring and training must agree), so one state
    serves all roles.
    """
    if parallel_state._GLOBAL_MEMORY_BUFFER is None:
        parallel_state._set_global_memory_buffer()
    tracker = get_cuda_rng_tracker()
    if _TRACKED_STATE not in tracker.get_states():
        tracker.add(_TRACKED_STATE, seed=0)


def _collection(layout: ParallelLayout, registry: GroupRegistry, whole: ProcessGroup) -> ProcessGroupCollection:
    def along(*axes: str) -> ProcessGroup | None:
        return registry.mine(layout.groups(*axes))

    def expert(axis: str) -> ProcessGroup | None:
        return registry.mine(layout.expert_groups(axis))

    data, data_context = along("data"), along("data", "context")
    tensor_expert = along("tensor", "context", "data") if layout.expert > 1 else along("tensor")
    pipelines = list(layout.groups("pipeline"))
    return ProcessGroupCollection(
        tp=along("tensor"),
        pp=registry.mine(pipelines),
        dp=data,
        cp=along("context"),
        mp=along("tensor", "pipeline"),
        tp_cp=along("tensor", "context"),
        dp_cp=data_context,
        dp_cp_gtp_remat=data_context,
        intra_dp_cp=data_context,
        tp_dp_cp=along("tensor", "context", "data"),
        intra_dist_opt=whole,
        embd=registry.mine(map(_embedding_ranks, pipelines)),
        pos_embd=registry.mine(stages[:1] for stages in pipelines),
        ep=expert("expert"),
        expt_tp=expert("expert_tensor"),
        expt_dp=expert("expert_data"),
        intra_expt_dp=expert("expert_data"),
        tp_ep=tensor_expert,
        tp_ep_pp=whole if layout.expert > 1 else along("tensor", "pipeline"),
        gtp_remat=None,
        expt_gtp_remat=None,
    )


def _global_answers(groups: ProcessGroupCollection, layout: ParallelLayout) -> dict[str, object]:
    """Names of ``parallel_state`` module variables and this role's answers to them."""

    def ranks(group: ProcessGroup | None) -> list[int] | None:
        return None if group is None else dist.get_process_group_ranks(group)

    return {
        "_TENSOR_MODEL_PARALLEL_GROUP": groups.tp,
        "_PIPELINE_MODEL_PARALLEL_GROUP": groups.pp,
        "_MODEL_PARALLEL_GROUP": groups.mp,
        "_EMBEDDING_GROUP": groups.embd,
        "_POSITION_EMBEDDING_GROUP": groups.pos_embd,
        "_CONTEXT_PARALLEL_GROUP": groups.cp,
        "_TENSOR_AND_CONTEXT_PARALLEL_GROUP": groups.tp_cp,
        "_TENSOR_AND_DATA_PARALLEL_GROUP": groups.tp_dp_cp,
        "_TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": groups.tp_dp_cp,
        "_DATA_PARALLEL_GROUP": groups.dp,
        "_DATA_PARALLEL_GROUP_WITH_GTP_REMAT": groups.dp,
        "_DATA_PARALLEL_GROUP_WITH_CP": groups.dp_cp,
        "_DATA_PARALLEL_GROUP_WITH_CP_WITH_GTP_REMAT": groups.dp_cp,
        "_INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": groups.dp_cp,
        "_INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_WITH_GTP_REMAT": groups.dp_cp,
        "_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": groups.intra_dist_opt,
        "_EXPERT_MODEL_PARALLEL_GROUP": groups.ep,
        "_EXPERT_TENSOR_PARALLEL_GROUP": groups.expt_tp,
        "_EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": groups.tp_ep,
        "_EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": groups.tp_ep_pp,
        "_EXPERT_DATA_PARALLEL_GROUP": groups.expt_dp,
        "_EXPERT_DATA_PARALLEL_GROUP_WITH_GTP_REMAT": groups.expt_dp,
        "_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": groups.expt_dp,
        "_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP_WITH_GTP_REMAT": groups.expt_dp,
        "_TENSOR_MODEL_PARALLEL_GLOBAL_RANKS": ranks(groups.tp),
        "_PIPELINE_GLOBAL_RANKS": ranks(groups.pp),
        "_MODEL_PARALLEL_GLOBAL_RANKS": ranks(groups.mp),
        "_EMBEDDING_GLOBAL_RANKS": ranks(groups.embd),
        "_POSITION_EMBEDDING_GLOBAL_RANKS": ranks(groups.pos_embd),
        "_DATA_PARALLEL_GLOBAL_RANKS": ranks(groups.dp),
        "_DATA_PARALLEL_GLOBAL_RANKS_WITH_CP": ranks(groups.dp_cp),
        "_CONTEXT_PARALLEL_GLOBAL_RANKS": ranks(groups.cp),
        "_VIRTUAL_PIPELINE_MODEL_PARALLEL_WORLD_SIZE": layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
    }
