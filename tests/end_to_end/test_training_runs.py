"""Whole training runs on two ranks: resuming, standing still, noticing faults, keeping samples together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megatron_rl.cli.compose import compose_run
from megatron_rl.config.rank_contract import EXIT_CODE_REQUEUE
from megatron_rl.config.run import RunConfig
from megatron_rl.config.validate import validate
from megatron_rl.config.world import with_world
from megatron_rl.observability.sinks import read_metrics
from tests.end_to_end.policies import write_policy
from tests.end_to_end.training_sessions import Ending, Run, train_all
from tests.support.distributed import run_distributed

pytestmark = pytest.mark.vllm

GRPO = (
    "algorithm=grpo",
    "actor.parallel.tensor=2",
    "actor.use_kl_loss=true",
    "actor.entropy_coeff=0.001",
    "actor.optim.lr_decay_style=cosine",
    "actor.optim.lr_warmup_steps=3",
    # Steps of two gen batches, most of which leave groups over; some are filled up.
    "algorithm.filter_groups.enable=true",
    "algorithm.filter_groups.metric=acc",
    "algorithm.filter_groups.max_num_gen_batches=2",
    "data.gen_batch_size=3",
)
PPO = (
    "algorithm=ppo",
    "actor.parallel.tensor=1",
    "actor.ppo_mini_batch_size=2",
    "actor.ppo_epochs=2",
    "actor.shuffle=true",
    "actor.optim.lr_decay_style=linear",
    "critic.parallel.pipeline=2",
    "critic.warmup_steps=1",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.horizon=100",
)
STILL = ("algorithm=grpo", "actor.parallel.tensor=2", "actor.optim.lr=0.0", "trainer.total_training_steps=4")
MOVING = ("algorithm=grpo", "actor.parallel.tensor=2", "actor.optim.lr=0.01", "trainer.total_training_steps=6")
LEAVING = (
    "rollout.free_cache_engine=true",
    "actor.grad_offload=true",
    "actor.optimizer_offload=true",
    "critic.grad_offload=true",
    "critic.optimizer_offload=true",
    "critic.param_offload=true",
    "ref.param_offload=true",
)
"""All memory that may leave does; a run resumed so must equal one in which it stays."""
STOP = "tests.end_to_end.callbacks:TerminateAfterStep4"
NOT_REPEATABLE = ("timing_s/", "perf/", "memory/", "memory_after/", "sync/seconds")
"""Families that depend on the clock and on what else the process holds."""


def _config(folder: Path, name: str, *overrides: str, callbacks: tuple[str, ...] = ()) -> RunConfig:
    listed = ",".join(("tests.end_to_end.callbacks:CheckJoins", *callbacks))
    config = compose_run(
        [
            "experiment=tiny_cpu",
            f"model.path='{folder / 'policy'}'",
            "data.reasoning_gym=null",
            f"data.train_files=['{folder / 'prompts.jsonl'}']",
            "data.train_batch_size=4",
            # Longer than a block of the engine's cache, so that there is a prefix to keep.
            "data.max_prompt_length=64",
            "rollout.n=4",
            "rollout.max_num_seqs=16",
            # All runs share one engine, which cannot read in place the weights of one actor after the other.
            "weight_sync.alias=false",
            "actor.optim.lr=1e-3",
            "actor.optim.lr_warmup_steps=0",
            "reward.function=tests.end_to_end.rewards:spread",
            f"trainer.output_dir='{folder}'",
            f"trainer.experiment_name={name}",
            "trainer.total_training_steps=10",
            "trainer.save_freq=100",
            "trainer.save_hf_at_end=false",
            "trainer.test_freq=-1",
            "trainer.log_samples=16",
            f"trainer.callbacks=[{listed}]",
            *overrides,
        ]
    )
    assert not validate(config, task="train", world_size=2)
    return with_world(config, 2, 0)


def _runs(folder: Path) -> dict[str, Run]:
    write_policy(folder / "policy", "qwen2", vocab_size=260, num_layers=2)
    rows = [{"prompt": f"the answer to question number {i:02d} is", "answer": str(i)} for i in range(12)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = {}
    for name, algorithm in (("grpo", GRPO), ("ppo", PPO)):
        runs[f"{name}_straight"] = Run(_config(folder, f"{name}_straight", *algorithm), folder / f"{name}_straight_run")
        # Without a word about saving: what stops by a signal must be able to go on.
        stopped = _config(folder, f"{name}_halves", *algorithm, *LEAVING, "trainer.save_freq=-1", callbacks=(STOP,))
        runs[f"{name}_stopped"] = Run(stopped, folder / f"{name}_stopped_run")
        runs[f"{name}_resumed"] = Run(_config(folder, f"{name}_halves", *algorithm, *LEAVING), folder / f"{name}_resumed_run")
    runs["still"] = Run(_config(folder, "still", *STILL, "trainer.save_freq=-1"), folder / "still_run")
    for fault in ("skip_one_sync", "perturb_one_layer", "keep_prefix_cache"):
        # All prompts in every batch: the same prompts return, as a kept cache wants.
        config = _config(folder, fault, *MOVING, "trainer.save_freq=-1", "data.train_batch_size=12")
        runs[fault] = Run(config, folder / f"{fault}_run", fault)
    return runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return _runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def endings(runs: dict[str, Run]) -> list[dict[str, Ending]]:
    return run_distributed(2, train_all, runs, timeout_s=400)


def _records(run: Run) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if not name.startswith(NOT_REPEATABLE)}
        for record in read_metrics(run.run_dir / "metrics.jsonl")
    ]


@pytest.mark.parametrize(("algorithm", "last_step"), [("grpo", 4), ("ppo", 5)], ids=["abandons_sampling", "finishes_the_step"])
def test_signal_to_one_rank_saves_at_the_step_boundary_of_all(algorithm: str, last_step: int, runs, endings) -> None:
    assert [rank[f"{algorithm}_stopped"].code for rank in endings] == [EXIT_CODE_REQUEUE] * 2
    records = _records(runs[f"{algorithm}_stopped"])
    assert [record["step"] for record in records] == list(range(1, last_step + 1))
    checkpoints = runs[f"{algorithm}_stopped"].config.trainer
    folder = Path(checkpoints.output_dir) / checkpoints.project_name / checkpoints.experiment_name / "checkpoints"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [f"step_{last_step:08d}", "step_00000010"]


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_resumed_run_equals_straight_run(algorithm: str, runs, endings) -> None:
    for rank in endings:
        straight, resumed = rank[f"{algorithm}_straight"], rank[f"{algorithm}_resumed"]
        assert straight.code == resumed.code == 0
        assert resumed.state == straight.state
        assert straight.state["weights"] != straight.start_weights
    halves = _records(runs[f"{algorithm}_stopped"]) + _records(runs[f"{algorithm}_resumed"])
    assert halves == _records(runs[f"{algorithm}_straight"])


def test_adaptive_kl_coefficient_moves(runs, endings) -> None:
    coefficients = [record["actor/reward_kl_penalty_coeff"] for record in _records(runs["ppo_straight"])]
    assert len(set(coefficients)) == 10


@pytest.mark.parametrize("name", ["grpo_straight", "ppo_straight"])
def test_rewards_and_responses_stay_with_their_prompts(name: str, runs, endings) -> None:
    records = _records(runs[name])
    assert [record["check/mixed_up"] for record in records] == [0.0] * 10
    assert len({record["check/rows"] for record in records}) > 5
    samples = [json.loads(line) for line in (runs[name].run_dir / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 10 * 16
    for sample in samples:
        assert sample["uid"].rpartition(":")[2].isdigit()
        assert sample["prompt"] == f"the answer to question number {int(sample['uid'].rpartition(':')[2]):02d} is"


def test_dynamic_sampling_trains_on_whole_batches_and_reports_all_samples(runs, endings) -> None:
    records = _records(runs["grpo_straight"])
    assert {record["train/num_gen_batches"] for record in records} == {2.0}
    assert {record["group/frac_kept"] for record in records} == {4 / 6}
    assert max(record["group/num_filled"] for record in records) <= 2
    samples = [json.loads(line) for line in (runs["grpo_straight"].run_dir / "samples.jsonl").read_text().splitlines()]
    assert {sample["trained"] for sample in samples} == {True, False}


def test_still_run_keeps_weights_and_agreement(runs, endings) -> None:
    for rank in endings:
        assert rank["still"].state["weights"] == rank["still"].start_weights
        assert not any("rollout_corr/" in text for text in rank["still"].warnings)
    for record in _records(runs["still"]):
        assert record["rollout_corr/logprob_diff_max"] < 1e-4
        assert record["actor/max_ratio_deviation"] < 1e-6
        assert abs(record["rollout_corr/kl"]) < 1e-5
        assert record["rollout_corr/probs_pearson"] > 0.9999


def test_healthy_run_agrees_with_the_engine(runs, endings) -> None:
    assert max(record["rollout_corr/logprob_diff_max"] for record in _records(runs["grpo_straight"])) < 1e-4
    assert not any("rollout_corr/" in text for text in endings[0]["grpo_straight"].warnings)


@pytest.mark.parametrize("fault", ["skip_one_sync", "perturb_one_layer", "keep_prefix_cache"])
def test_fault_of_the_weight_sync_raises_the_mismatch_warning(fault: str, runs, endings) -> None:
    assert max(record["rollout_corr/logprob_diff_mean"] for record in _records(runs[fault])) > 1e-3
    assert any("rollout_corr/logprob_diff_mean" in text for text in endings[0][fault].warnings)
