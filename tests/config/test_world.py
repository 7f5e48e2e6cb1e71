from __future__ import annotations

import pytest

from megatron_rl.config.loading import compose
from megatron_rl.config.world import ranks_per_node, smallest_world, with_world


@pytest.mark.parametrize(
    "overrides,world",
    [
        ([], 1),
        (["actor.parallel.tensor=2"], 2),
        (["actor.parallel.tensor=2", "actor.parallel.pipeline=2"], 4),
        (["algorithm=ppo", "actor.parallel.tensor=2", "critic.parallel.pipeline=4"], 4),
        (["algorithm=grpo", "actor.parallel.tensor=2", "critic.parallel.pipeline=4"], 2),
        (["actor.parallel.tensor=2", "rollout.tensor_parallel_size=3"], 6),
        (["actor.parallel.data=4"], 4),
        (["actor.parallel.pipeline=2", "actor.parallel.expert=8", "actor.parallel.expert_tensor=1"], 16),
    ],
    ids=["single", "tp2", "tp2_pp2", "critic_pp4", "critic_unused", "lcm_with_rollout", "explicit_data", "experts"],
)
def test_smallest_world_matches_hand_computed(overrides: list[str], world: int) -> None:
    assert smallest_world(compose(overrides)) == world


def test_smallest_world_counts_only_the_roles_of_the_task() -> None:
    config = compose(
        ["algorithm=ppo", "actor.parallel.tensor=2", "critic.parallel.pipeline=4", "rollout.tensor_parallel_size=4"]
    )
    assert {task: smallest_world(config, task) for task in ("train", "sft", "generate", "convert")} == {
        "train": 4,
        "sft": 2,
        "generate": 4,
        "convert": 2,
    }


def test_ranks_per_node_prefers_what_is_configured_then_gpus_then_layouts() -> None:
    tensor2 = ["actor.parallel.tensor=2"]
    assert ranks_per_node(compose([*tensor2, "trainer.n_gpus_per_node=6"]), num_gpus=8) == 6
    assert ranks_per_node(compose(tensor2), num_gpus=8) == 8
    assert ranks_per_node(compose([*tensor2, "trainer.device=cpu"]), num_gpus=8) == 2
    assert ranks_per_node(compose(tensor2), num_gpus=0) == 2


def test_with_world_fills_every_derived_value() -> None:
    config = with_world(compose(["experiment=tiny_cpu", "algorithm=ppo", "trainer.device=auto"]), world_size=4, num_gpus=0)
    assert (config.actor.parallel.data, config.critic.parallel.data, config.rollout.data_parallel_size) == (2, 2, 4)
    assert config.ref.parallel == config.actor.parallel
    assert (config.trainer.n_gpus_per_node, config.trainer.device, config.rollout.max_model_len) == (4, "cpu", 24)


def test_with_world_roundtrips_when_a_role_the_task_does_not_build_cannot_fit() -> None:
    config = compose(["experiment=tiny_cpu", "critic.parallel.pipeline=2", "actor.parallel.tensor=1"])
    resolved = with_world(config, world_size=1, num_gpus=0)
    assert resolved.critic.parallel.data is None
    assert type(config).model_validate_json(resolved.model_dump_json()) == resolved
