"""Process groups of several layouts in one job, Megatron's globals put back, replicas compared bit for bit."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.parallel.layout import ParallelLayout
from tests.support.distributed import run_distributed

_ACTOR = ParallelLayout(tensor=2, pipeline=2)
_CRITIC = ParallelLayout(pipeline=2, data=2)


def _memberships() -> dict[str, list[int]]:
    import torch.distributed as dist
    from megatron.core import parallel_state

    from megatron_rl.parallel.groups import GroupRegistry, RoleGroups
    from megatron_rl.runtime.cpu import install_cpu_runtime

    install_cpu_runtime()
    registry = GroupRegistry()
    actor, critic = RoleGroups.build(_ACTOR, registry), RoleGroups.build(_CRITIC, registry)
    answer = {
        f"{name}.{axis}": dist.get_process_group_ranks(getattr(role.collection, axis))
        for name, role in (("actor", actor), ("critic", critic))
        for axis in ("tp", "pp", "dp", "mp", "embd", "intra_dist_opt", "cp")
    }
    assert RoleGroups.build(_ACTOR, registry).collection.tp is actor.collection.tp, "equal rank lists share a group"
    before = dict(vars(parallel_state))
    with actor.as_megatron_globals(), critic.as_megatron_globals():
        assert parallel_state.get_tensor_model_parallel_world_size() == 1
        assert parallel_state.get_data_parallel_rank() == critic.coordinates.data  # type: ignore[union-attr]
    after = dict(vars(parallel_state))
    assert {k for k in before if before[k] is not after[k]} <= {"_GLOBAL_MEMORY_BUFFER"}
    return answer


def test_role_groups_matches_hand_computed() -> None:
    answers = run_distributed(4, _memberships)
    assert answers[1] == {
        "actor.tp": [0, 1],
        "actor.pp": [1, 3],
        "actor.dp": [1],
        "actor.mp": [0, 1, 2, 3],
        "actor.embd": [1, 3],
        "actor.intra_dist_opt": [0, 1, 2, 3],
        "actor.cp": [1],
        "critic.tp": [1],
        "critic.pp": [1, 3],
        "critic.dp": [0, 1],
        "critic.mp": [1, 3],
        "critic.embd": [1, 3],
        "critic.intra_dist_opt": [0, 1, 2, 3],
        "critic.cp": [1],
    }


def _too_large() -> None:
    from megatron_rl.parallel.groups import GroupRegistry, RoleGroups

    with pytest.raises(ValueError, match="needs 4 ranks, but the job has 1"):
        RoleGroups.build(_ACTOR, GroupRegistry())


def test_role_groups_rejects_more_ranks_than_the_job_has() -> None:
    run_distributed(1, _too_large)


def _differences() -> list[list[str]]:
    import torch.distributed as dist

    from megatron_rl.parallel.collectives import first_difference

    rank = dist.get_rank()
    same = torch.arange(6, dtype=torch.float32)
    one_bit = same.clone()
    one_bit.view(torch.int32)[3] ^= rank
    swapped = same.flip(0) if rank else same
    half = torch.ones(5, dtype=torch.bfloat16) + rank
    world = dist.group.WORLD
    return [first_difference({"same": same, "one_bit": one_bit, "swapped": swapped, "half": half}, world)]


def test_first_difference_names_tensors_that_differ() -> None:
    assert run_distributed(2, _differences) == [[["one_bit", "swapped", "half"]]] * 2
