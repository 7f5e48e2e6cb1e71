"""Parallel layouts as data: degrees to coordinates and rank lists, without torch and without a process group.

Rank order follows Megatron-Core's default: tensor varies fastest, then context, then data, then pipeline.
``rank = offset + tensor + TP * (context + CP * (data + DP * pipeline))``. Experts re-cut the TP * CP * DP block of a
pipeline stage as ``expert_tensor + ETP * (expert + EP * expert_data)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import lcm

AXES = ("tensor", "context", "data", "pipeline")
"""Axes of the dense grid, fastest first."""


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

    def __post_init__(self) -> None:
        block = self.tensor * self.context * self.data
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
        index = rank - self.offset
        places = {}
        for axis in AXES:
            index, places[axis] = divmod(index, self.size(axis))
        return Coordinates(**places)

    def rank(self, *, tensor: int = 0, context: int = 0, data: int = 0, pipeline: int = 0) -> int:
        """Global rank at a place of the grid."""
        return self.offset + tensor + self.tensor * (context + self.context * (data + self.data * pipeline))

    def groups(self, *axes: str) -> Iterator[tuple[int, ...]]:
        """Rank lists that vary along ``axes`` and share every other coordinate, in a fixed order."""
        fixed = [axis for axis in reversed(AXES) if axis not in axes]
        moving = [axis for axis in reversed(AXES) if axis in axes]
        for held in product(*(range(self.size(axis)) for axis in fixed)):
            base = dict(zip(fixed, held, strict=True))
            yield tuple(
                self.rank(**base, **dict(zip(moving, moved, strict=True)))
                for moved in product(*(range(self.size(axis)) for axis in moving))
            )

    def expert_groups(self, axis: str) -> Iterator[tuple[int, ...]]:
        """Rank lists of the expert grid along ``expert_tensor``, ``expert`` or ``expert_data``, per pipeline stage."""
        block = self.tensor * self.context * self.data
        sizes = {"expert_tensor": self.etp, "expert": self.expert, "expert_data": block // (self.etp * self.expert)}
        order = list(sizes)
        strides = {"expert_tensor": 1, "expert": self.etp, "expert_data": self.etp * self.expert}
        others = [name for name in reversed(order) if name != axis]
        for stage in range(self.pipeline):
            for held in product(*(range(sizes[name]) for name in others)):
                base = self.offset + stage * block + sum(strides[n] * h for n, h in zip(others, held, strict=True))
                yield tuple(base + strides[axis] * i for i in range(sizes[axis]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLayout:
    """TP x PP x DP grid of the engine shards; tensor varies fastest, then the pipeline stage, then the engine.

    ``permutation[slot]`` is the global rank of a slot.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    """Shards of a stage, over consecutive engines, over which whole experts are spread: a multiple of ``tensor``, or
    1 = TP cuts every expert."""
    permutation: tuple[int, ...] | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        shards = self.tensor * self.data
        if self.expert != 1 and (self.expert % self.tensor != 0 or shards % self.expert != 0):
            raise ValueError(
                f"expert={self.expert} must be 1 or a multiple of tensor={self.tensor} that divides the {shards} shards "
                "of a stage"
            )

    @property
    def world_size(self) -> int:
        """Ranks the engines cover."""
        return self.tensor * self.pipeline * self.data

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global rank of every slot."""
        natural = range(self.offset, self.offset + self.world_size)
        return tuple(natural) if self.permutation is None else self.permutation

    def slot(self, rank: int) -> tuple[int, int]:
        """(data, tensor) place of a global rank."""
        engine_stage, tensor = divmod(self._index(rank), self.tensor)
        return engine_stage // self.pipeline, tensor

    def stage(self, rank: int) -> int:
        """Pipeline stage of a global rank."""
        return self._index(rank) // self.tensor % self.pipeline

    def tensor_groups(self) -> Iterator[tuple[int, ...]]:
        """Global ranks of each stage of each engine, in tensor order."""
        ranks = self.ranks
        for first in range(0, self.world_size, self.tensor):
            yield ranks[first : first + self.tensor]

    def _index(self, rank: int) -> int:
        return rank - self.offset if self.permutation is None else self.permutation.index(rank)


def padded_vocab_size(vocab_size: int, tensor: int) -> int:
    """Rows of the embedding matrix over all tensor-parallel ranks, padding included.

    The next multiple of 64, as the rollout engine pads, so that equal shards hold equal bytes; where TP does not
    divide that, the next multiple of 64 and TP. Padded rows are zero, are never trained and take no part in any soft-max.
    """
    multiple = lcm(64, tensor)
    rounded = -(-vocab_size // 64) * 64
    return rounded if rounded % tensor == 0 else -(-vocab_size // multiple) * multiple
