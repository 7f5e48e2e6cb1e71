"""One GRPO and one PPO step give the same weights, values and metrics on every layout and however the batch is cut."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from megatron_rl.cli.compose import compose_run
from megatron_rl.config.run import RunConfig
from megatron_rl.config.validate import validate
from megatron_rl.config.world import with_world
from megatron_rl.data.byte_tokenizer import write_byte_tokenizer
from tests.end_to_end.fixed_rollouts import NUM_PROMPTS, SAMPLES_PER_PROMPT
from tests.end_to_end.policies import write_policy
from tests.end_to_end.step_sessions import StepAnswer, take_steps
from tests.support.distributed import run_distributed

VOCAB_SIZE = 269
"""Above the tokenizer's 259 ids and a prime, so that no degree divides it."""
ONE_BY_ONE = ("actor.use_dynamic_bsz=false", "actor.ppo_micro_batch_size_per_gpu=1")
CASES = {
    "one_rank": (1, ()),
    "micro_batches_of_1": (1, (*ONE_BY_ONE, *(key.replace("actor", "critic") for key in ONE_BY_ONE))),
    "packs_of_40": (1, ("actor.ppo_max_token_len_per_gpu=40", "critic.ppo_max_token_len_per_gpu=40")),
    "tp2": (2, ("actor.parallel.tensor=2", "critic.parallel.pipeline=2")),
    "pp2": (2, ("actor.parallel.pipeline=2", "critic.parallel.tensor=2")),
    "dp2": (2, ("critic.parallel.tensor=2", "critic.parallel.sequence_parallel=true", "actor.ppo_max_token_len_per_gpu=64")),
    "tp2_pp2": (4, ("actor.parallel.tensor=2", "actor.parallel.pipeline=2", "critic.parallel.tensor=2")),
}
"""Ranks and overrides."""
RECUT = (
    "actor.optim.lr=0.0",
    "actor.optim.weight_decay=0.0",
    "actor.ppo_mini_batch_size=1",
    "actor.ppo_epochs=2",
    "actor.shuffle=true",
)
"""Weights that stay, scored in one cut and updated in eight others, by a policy flat enough for f32 to resolve 1e-6."""
RECUT_CASES = {
    "recut": (1, (*RECUT, "actor.ppo_max_token_len_per_gpu=40")),
    "recut_tp2": (2, (*RECUT, "actor.parallel.tensor=2", "actor.recompute.granularity=full", "critic.parallel.tensor=2")),
    "recut_pp2_dp2": (4, (*RECUT, "actor.parallel.pipeline=2", *ONE_BY_ONE)),
}
CUT_METRICS = {"actor/max_ratio_deviation", "packing/padding_frac", "balance/imbalance"}
"""What differs with the layout."""
OPTIMIZER = ("eps=0.1", "lr=0.05", "lr_warmup_steps=0")
"""With the usual tiny epsilon Adam would turn rounding noise in tiny gradients into full-size steps."""
ALGORITHMS = {
    "grpo": ("algorithm=grpo", "actor.use_kl_loss=true", "actor.kl_loss_coef=0.1", "actor.entropy_coeff=0.01"),
    "ppo": ("algorithm=ppo", "algorithm.lam=0.9", "algorithm.use_kl_in_reward=true", "actor.loss_agg_mode=seq-mean-token-mean"),
}


def _config(world_size: int, overrides: list[str]) -> RunConfig:
    config = compose_run(overrides)
    assert not validate(config, task="train", world_size=world_size)
    return with_world(config, world_size, 0)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory):
    """Steps of all cases of a number of ranks, from one process group."""
    folder: Path = tmp_path_factory.mktemp("steps")
    policy = write_policy(folder / "policy", "qwen2", vocab_size=VOCAB_SIZE)
    flat = write_policy(folder / "flat", "qwen2", vocab_size=VOCAB_SIZE, scale=0.02)
    reference = write_policy(folder / "reference", "qwen2", vocab_size=VOCAB_SIZE, seed=1)
    tokenizer = write_byte_tokenizer(folder / "tokenizer")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"say {i}", "answer": str(i)}) + "\n" for i in range(NUM_PROMPTS)))

    @cache
    def of_world(world_size: int) -> list[dict[str, StepAnswer]]:
        configs = {
            f"{algorithm}-{case}": _config(
                world_size,
                [
                    "experiment=tiny_cpu",
                    *choice,
                    f"model.path='{flat if case in RECUT_CASES else policy}'",
                    f"model.tokenizer_path='{tokenizer}'",
                    f"ref.load_path='{reference}'",
                    "data.reasoning_gym=null",
                    f"data.train_files=['{prompts}']",
                    f"data.train_batch_size={NUM_PROMPTS}",
                    f"rollout.n={SAMPLES_PER_PROMPT}",
                    "rollout.temperature=0.9",
                    "trainer.test_freq=-1",
                    "actor.parallel.tensor=1",
                    "critic.parallel.pipeline=1",
                    *(f"{role}.optim.{setting}" for role in ("actor", "critic") for setting in OPTIMIZER),
                    *overrides,
                ],
            )
            for algorithm, choice in ALGORITHMS.items()
            for case, (needed, overrides) in {**CASES, **RECUT_CASES}.items()
            if needed == world_size
        }
        return run_distributed(world_size, take_steps, configs, folder / f"world{world_size}")

    return of_world


@pytest.mark.parametrize("case", [case for case in CASES if case != "one_rank"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_updated_policy_invariant_to_layout_and_cut(algorithm: str, case: str, answers) -> None:
    expected = load_file(answers(1)[0][f"{algorithm}-one_rank"].exported / "model.safetensors")
    actual = load_file(answers(CASES[case][0])[0][f"{algorithm}-{case}"].exported / "model.safetensors")
    start = load_file(answers(1)[0][f"{algorithm}-one_rank"].exported.parents[2] / "policy" / "model.safetensors")
    for name, weight in expected.items():
        assert np.abs(weight - start[name]).max() > 1e-5, f"{name} did not move"
        np.testing.assert_allclose(actual[name], weight, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("case", [case for case in CASES if case != "one_rank"])
def test_updated_critic_invariant_to_layout_and_cut(case: str, answers) -> None:
    expected = answers(1)[0]["ppo-one_rank"].values_BS
    for rank in answers(CASES[case][0]):
        np.testing.assert_allclose(rank[f"ppo-{case}"].values_BS, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case != "one_rank"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_metrics_invariant_to_layout_and_cut(algorithm: str, case: str, answers) -> None:
    expected = answers(1)[0][f"{algorithm}-one_rank"].metrics
    for rank in answers(CASES[case][0]):
        actual = rank[f"{algorithm}-{case}"].metrics
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            if name not in CUT_METRICS:
                np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", {**CASES, **RECUT_CASES})
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ratio_before_any_step_is_one(algorithm: str, case: str, answers) -> None:
    metrics = answers({**CASES, **RECUT_CASES}[case][0])[0][f"{algorithm}-{case}"].metrics
    assert metrics["actor/max_ratio_deviation"] < 1e-6
    assert metrics["actor/pg_clipfrac"] == 0.0
