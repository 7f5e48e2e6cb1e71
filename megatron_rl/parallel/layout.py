"""Parallel layouts as data: degrees to coordinates and rank lists, without torch and without a process group.

Rank order is Megatron-Core's default where a layout names no other: tensor varies fastest, then context, then data, then
pipeline. ``rank = offset + tensor + TP * (context + CP * (data + DP * pipeline))``. Experts re-cut the TP * CP * DP ranks
of a pipeline stage, in ascending order, as ``expert_tensor + ETP * (expert + EP * expert_data)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import lcm

from megatron_rl.config.tensor_degrees import VOCAB_MULTIPLE
from megatron_rl.parallel.rank_order import RankOrder, axis_sizes, rank_digits, rank_index

AXES = ("tensor", "context", "data", "pipeline")
"""Axes of the dense grid, fastest first."""
ENGINE_AXES = ("tensor", "pipeline", "data")
"""Axes of the engines' grid, fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Place of one rank in the dense grid."""

    tensor: int
    context: int
    data: int
    pipeline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Degrees of one role and the range of ranks it lives on.

    Example: ``ParallelLayout(tensor=2, pipeline=2, data=2)`` covers ranks 0..7; rank 5 is tensor 1, data 0, stage 1.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    virtual_pipeline: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    sequence_parallel: bool = False
    offset: int = 0
    order: RankOrder | None = None
    """Which axis counts how far in a rank's number, fastest first; None = ``AXES``, each whole. Along every axis ranks
    ascend in any order, so that a process group's numbering is the coordinate."""

    def __post_init__(self) -> None:
        block = self.tensor * self.context * self.data
        wanted = {axis: self.size(axis) for axis in AXES}
        if self.order is not None and {axis: 1 for axis in AXES} | axis_sizes(self.order) != wanted:
            raise ValueError(f"the factors of order={self.order} must multiply to {wanted}")
        if block % (self.expert * self.etp) != 0:
            raise ValueError(f"expert={self.expert} * expert_tensor={self.etp} must divide tensor * context * data = {block}")

    @property
    def etp(self) -> int:
        """Tensor-parallel degree inside an expert."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def world_size(self) -> int:
        """Ranks the role covers."""
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def ranks(self) -> range:
        """Global ranks the role covers."""
        return range(self.offset, self.offset + self.world_size)

    def size(self, axis: str) -> int:
        """Degree of one axis of ``AXES``."""
        return {"tensor": self.tensor, "context": self.context, "data": self.data, "pipeline": self.pipeline}[axis]

    def coordinates(self, rank: int) -> Coordinates:
        """Place of a global rank in the grid."""
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is outside {self.ranks}")
        return Coordinates(**{axis: 0 for axis in AXES} | rank_digits(self.rank_order, rank - self.offset))

    def rank(self, *, tensor: int = 0, context: int = 0, data: int = 0, pipeline: int = 0) -> int:
        """Global rank at a place of the grid."""
        places = {"tensor": tensor, "context": context, "data": data, "pipeline": pipeline}
        return self.offset + rank_index(self.rank_order, places)

    @property
    def rank_order(self) -> RankOrder:
        """The order of the ranks, spelt out where it is the natural one."""
        return self.order or tuple((axis, self.size(axis)) for axis in AXES)

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """Ranks of one pipeline stage, ascending."""
        return tuple(rank for rank in self.ranks if self.coordinates(rank).pipeline == stage)

    def place_in_stage(self, rank: int) -> int:
        """Index of a rank among the ascending ranks of its pipeline stage, which is how experts are laid out."""
        inner = tuple(factor for factor in self.rank_order if factor[0] != "pipeline")
        return rank_index(inner, rank_digits(self.rank_order, rank - self.offset))

    def groups(self, *axes: str) -> Iterator[tuple[int, ...]]:
        """Ascending rank lists that vary along ``axes`` and share every other coordinate, in a fixed order."""
        fixed = [axis for axis in reversed(AXES) if axis not in axes]
        moving = [axis for axis in reversed(AXES) if axis in axes]
        for held in product(*(range(self.size(axis)) for axis in fixed)):
            base = dict(zip(fixed, held, strict=True))
            members = (
                self.rank(**base, **dict(zip(moving, moved, strict=True)))
                for moved in product(*(range(self.size(axis)) for axis in moving))
            )
            yield tuple(sorted(members))

    def expert_groups(self, axis: str) -> Iterator[tuple[int, ...]]:
        """Rank lists of the expert grid along ``expert_tensor``, ``expert`` or ``expert_data``, per pipeline stage."""
        block = self.tensor * self.context * self.data
        sizes = {"expert_tensor": self.etp, "expert": self.expert, "expert_data": block // (self.etp * self.expert)}
        order = list(sizes)
        strides = {"expert_tensor": 1, "expert": self.etp, "expert_data": self.etp * self.expert}
        others = [name for name in reversed(order) if name != axis]
        for stage in range(self.pipeline):
            ranks = self.stage_ranks(stage)
            for held in product(*(range(sizes[name]) for name in others)):
                base = sum(strides[n] * h for n, h in zip(others, held, strict=True))
                yield tuple(ranks[base + strides[axis] * i] for i in range(sizes[axis]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLayout:
    """TP x PP x DP grid of the engine shards.

    A *slot* numbers the shards with tensor fastest, then the pipeline stage, then the engine; slots are laid over the ranks
    one to one, unless ``order`` or ``permutation`` says otherwise.
    Example: ``RolloutLayout(tensor=2, data=2, order=(("data", 2), ("tensor", 2)))`` has the engines on ranks 0, 2 and 1, 3.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    """Shards of a stage, over consecutive engines, over which whole experts are spread: a multiple of ``tensor``, or
    1 = TP cuts every expert."""
    order: RankOrder | None = None
    """Which axis counts how far in a rank's number, fastest first; None = ``ENGINE_AXES``, each whole."""
    permutation: tuple[int, ...] | None = None
    """``permutation[slot]`` is the slot's global rank, in place of ``order``. Groups may then be out of order, which no
    engine can have."""
    offset: int = 0

    def __post_init__(self) -> None:
        shards = self.tensor * self.data
        if self.expert != 1 and (self.expert % self.tensor != 0 or shards % self.expert != 0):
            raise ValueError(
                f"expert={self.expert} must be 1 or a multiple of tensor={self.tensor} that divides the {shards} shards "
                "of a stage"
            )
        wanted = dict(self._natural_order)
        if self.order is not None and {axis: 1 for axis in ENGINE_AXES} | axis_sizes(self.order) != wanted:
            raise ValueError(f"the factors of order={self.order} must multiply to {wanted}")

    @property
    def world_size(self) -> int:
        """Ranks the engines cover."""
        return self.tensor * self.pipeline * self.data

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global rank of every slot."""
        if self.permutation is not None:
            return self.permutation
        slots = range(self.world_size)
        return tuple(self.offset + rank_index(self.rank_order, rank_digits(self._natural_order, slot)) for slot in slots)

    @property
    def rank_order(self) -> RankOrder:
        """The order of the ranks, spelt out where it is the natural one."""
        return self.order or self._natural_order

    def index(self, rank: int) -> int:
        """Number of the slot on a global rank."""
        if self.permutation is not None:
            return self.permutation.index(rank)
        return rank_index(self._natural_order, rank_digits(self.rank_order, rank - self.offset))

    def slot(self, rank: int) -> tuple[int, int]:
        """(data, tensor) place of a global rank."""
        engine_stage, tensor = divmod(self.index(rank), self.tensor)
        return engine_stage // self.pipeline, tensor

    def stage(self, rank: int) -> int:
        """Pipeline stage of a global rank."""
        return self.index(rank) // self.tensor % self.pipeline

    def tensor_groups(self) -> Iterator[tuple[int, ...]]:
        """Global ranks of each stage of each engine, in tensor order."""
        ranks = self.ranks
        for first in range(0, self.world_size, self.tensor):
            yield ranks[first : first + self.tensor]

    def expert_groups(self) -> Iterator[tuple[int, ...]]:
        """Global ranks over which the experts of a stage are spread, in the order in which the experts are."""
        stages = range(self.pipeline)
        groups = list(self.tensor_groups())
        engines = max(1, self.expert // self.tensor)
        for first, stage in product(range(0, self.data, engines), stages):
            yield tuple(rank for engine in range(first, first + engines) for rank in groups[engine * self.pipeline + stage])

    @property
    def _natural_order(self) -> RankOrder:
        return ("tensor", self.tensor), ("pipeline", self.pipeline), ("data", self.data)


def padded_vocab_size(vocab_size: int, tensor: int) -> int:
    """Rows of the embedding matrix over all tensor-parallel ranks, padding included.

    The next multiple of 64, as the rollout engine pads, so that equal shards hold equal bytes; where TP does not
    divide that, the next multiple of 64 and TP. Padded rows are zero, are never trained and take no part in any soft-max.
    """
    multiple = lcm(VOCAB_MULTIPLE, tensor)
    rounded = -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    return rounded if rounded % tensor == 0 else -(-vocab_size // multiple) * multiple
