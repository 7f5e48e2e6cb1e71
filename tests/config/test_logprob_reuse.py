from __future__ import annotations

import pytest

from megatron_rl.config.loading import compose
from megatron_rl.config.logprob_reuse import reuse_problems, reuses_logprobs

CASES = {
    "one_step": ("grpo", [], True),
    "whole_batch_as_mini_batch": ("grpo", ["data.train_batch_size=32", "actor.ppo_mini_batch_size=32"], True),
    "kl_loss": ("grpo", ["actor.use_kl_loss=true"], True),
    "asked_to_score": ("grpo", ["actor.reuse_logprobs=false"], False),
    "mini_batches": ("grpo", ["data.train_batch_size=32", "actor.ppo_mini_batch_size=16"], False),
    "epochs": ("grpo", ["actor.ppo_epochs=2"], False),
    "kl_in_reward": ("grpo", ["algorithm.use_kl_in_reward=true"], False),
    "correction": ("grpo", ["rollout.correction.mode=token"], False),
    "critic_warmup": ("ppo", ["critic.warmup_steps=1"], False),
}


@pytest.mark.parametrize("algorithm,overrides,reuses", CASES.values(), ids=CASES.keys())
def test_reuses_logprobs_only_where_nothing_needs_them_before(algorithm: str, overrides: list[str], reuses: bool) -> None:
    config = compose([f"algorithm={algorithm}", *overrides])
    assert reuses_logprobs(config) is reuses
    assert list(reuse_problems(config)) == []


def test_reuse_problems_names_every_reader() -> None:
    overrides = ["actor.reuse_logprobs=true", "algorithm.use_kl_in_reward=true", "rollout.correction.mode=token"]
    problems = list(reuse_problems(compose(["algorithm=grpo", *overrides])))
    assert [("use_kl_in_reward" in problem, "correction.mode" in problem) for problem in problems] == [
        (True, False),
        (False, True),
    ]
