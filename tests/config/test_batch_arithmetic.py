from __future__ import annotations

import pytest

from megatron_rl.config.batch_arithmetic import batch_arithmetic, batch_problems, nearest_legal
from megatron_rl.config.loading import compose

CASES = {
    "whole_batch": (["data.train_batch_size=32", "rollout.n=8"], 2, (32, 256, 16), (256, 1, 1, 128)),
    "mini_batches": (
        ["data.train_batch_size=32", "rollout.n=8", "actor.ppo_mini_batch_size=8", "actor.ppo_epochs=2"],
        4,
        (32, 256, 8),
        (64, 4, 8, 16),
    ),
    "uneven_ranks": (["data.train_batch_size=5", "rollout.n=3", "actor.parallel.tensor=2"], 8, (5, 15, 1), (15, 1, 1, 4)),
    "engines_over_two_ranks": (
        ["data.train_batch_size=6", "rollout.n=2", "rollout.tensor_parallel_size=2", "actor.parallel.pipeline=2"],
        4,
        (6, 12, 3),
        (12, 1, 1, 6),
    ),
}


@pytest.mark.parametrize("overrides,world,step,actor", CASES.values(), ids=CASES.keys())
def test_batch_arithmetic_matches_hand_computed(overrides, world, step, actor) -> None:
    table = batch_arithmetic(compose(["algorithm=grpo", *overrides]), world)
    role = table.roles[0]
    assert (table.prompts_per_step, table.samples_per_step, table.prompts_per_engine) == step
    assert (role.mini_batch_samples, role.mini_batches_per_epoch, role.optimizer_steps, role.samples_per_rank) == actor


def test_batch_arithmetic_table_names_critic_only_where_there_is_one() -> None:
    assert "critic" in batch_arithmetic(compose(["algorithm=ppo"]), 1).table()
    assert "critic" not in batch_arithmetic(compose(["algorithm=grpo"]), 1).table()


def test_batch_arithmetic_counts_gen_batches_per_engine() -> None:
    rule = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=10"]
    table = batch_arithmetic(compose(["algorithm=grpo", "data.train_batch_size=32", "data.gen_batch_size=96", *rule]), 4)
    assert (table.prompts_per_step, table.prompts_per_engine) == (32, 24)
    assert "96 prompts at once until 32 groups differ in seq_reward, at most 10 gen batches a step" in table.table()


@pytest.mark.parametrize(
    "overrides,said",
    [
        (["data.train_batch_size=32", "actor.ppo_mini_batch_size=12"], "nearest legal values: 8 or 16"),
        (["data.train_batch_size=32", "actor.ppo_mini_batch_size=64"], "nearest legal values: 32"),
        (["data.train_batch_size=1", "rollout.n=2"], "2 samples for 4 data-parallel ranks"),
        (["actor.use_dynamic_bsz=false"], "needs actor.ppo_micro_batch_size_per_gpu"),
        (["actor.ppo_max_token_len_per_gpu=100"], "use at least 1024"),
    ],
    ids=["not_a_divisor", "larger_than_the_batch", "fewer_samples_than_ranks", "no_limit", "token_budget"],
)
def test_batch_problems_rejects_impossible_sizes(overrides, said) -> None:
    (problem,) = batch_problems(compose(["algorithm=grpo", *overrides]), 4)
    assert said in problem


def test_nearest_legal_matches_hand_computed() -> None:
    assert nearest_legal(12, [1, 2, 4, 8, 16, 32]) == "8 or 16"
    assert nearest_legal(99, [1, 2, 4]) == "4"
