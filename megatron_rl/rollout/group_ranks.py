"""The ranks of the engine's process groups, where they are not consecutive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from megatron_rl.parallel.layout import RolloutLayout

if TYPE_CHECKING:
    from vllm.distributed.parallel_state import GroupCoordinator


def require_ascending(layout: RolloutLayout) -> None:
    """Raise ValueError where a group's ranks do not ascend: torch numbers members by rank, vLLM by its list."""
    for ranks in (*layout.tensor_groups(), *layout.expert_groups()):
        if list(ranks) != sorted(ranks):
            raise ValueError(f"the ranks {list(ranks)} of an engine's group must ascend; choose another order than {layout}")


@contextmanager
def engine_groups(layout: RolloutLayout) -> Iterator[None]:
    """Have vLLM form its groups of the ranks on which the layout has their slots, while an engine is built.

    vLLM numbers shards as slots are numbered and takes the number for the rank.
    """
    from vllm.distributed import parallel_state

    original, ranks = parallel_state.init_model_parallel_group, layout.ranks

    def over_ranks(group_ranks: Sequence[Sequence[int]], *args: Any, **kwargs: Any) -> GroupCoordinator:
        return original([[ranks[slot] for slot in slots] for slots in group_ranks], *args, **kwargs)

    parallel_state.init_model_parallel_group = over_ranks
    try:
        yield
    finally:
        parallel_state.init_model_parallel_group = original
