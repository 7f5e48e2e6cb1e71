"""The commands of the README on tiny assets, from another directory: what they leave and what they print."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from megatron_rl.config.rank_contract import EXIT_CODE_REQUEUE
from megatron_rl.config.run_files import read_run_config
from megatron_rl.observability.sinks import read_metrics
from tests.end_to_end.commands import Command, abandoned_segments, run, start
from tests.end_to_end.policies import load_policy
from tests.end_to_end.tiny_assets import NUM_ROWS, overrides, write_assets

pytestmark = pytest.mark.vllm

STEP_KEYS = {
    "step",
    "reward/mean",
    "timing_s/step",
    "timing_s/gen",
    "timing_s/reward",
    "timing_s/adv",
    "timing_s/update_actor",
    "timing_s/update_weights",
    "perf/tokens_per_second",
    "sync/bytes_received",
    "sync/bound_ratio",
    "rollout_corr/logprob_diff_mean",
    "actor/max_ratio_deviation",
    "actor/entropy",
    "packing/padding_frac",
    "balance/imbalance",
    "actor/grad_norm",
    "response_length/mean",
}
"""Of every record of metrics.jsonl."""


def _latest(folder: Path, experiment: str) -> Path:
    return folder / "outputs" / "megatron_rl" / experiment / "latest"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_assets(tmp_path_factory.mktemp("workplace"))


@pytest.fixture(scope="module")
def tuned(workplace: Path) -> Path:
    """Folder of a fine-tuning run on one rank."""
    run(
        workplace,
        "sft",
        *overrides(workplace, f"sft.train_files=['{workplace / 'pairs.jsonl'}']", "sft.batch_size=4", "sft.total_steps=3"),
        "trainer.experiment_name=tuning",
    )
    return _latest(workplace, "tuning")


def test_sft_leaves_metrics_and_a_loadable_policy(tuned: Path) -> None:
    records = read_metrics(tuned / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3]
    assert {"sft/loss", "sft/grad_norm", "timing_s/step", "perf/tokens_per_second"} <= records[0].keys()
    load_policy(tuned / "hf_checkpoint")
    assert (tuned / "hf_checkpoint" / "tokenizer.json").exists()


def test_generate_answers_every_prompt(workplace: Path, tuned: Path) -> None:
    target = workplace / "answers.jsonl"
    settings = overrides(workplace, f"model.path='{tuned / 'hf_checkpoint'}'", "rollout.n=2", "generate.split=train")
    run(workplace, "generate", *settings, f"generate.output_file='{target}'", "trainer.experiment_name=sampling")
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [record["prompt"] for record in records] == [f"number {i // 2}" for i in range(2 * NUM_ROWS)]
    assert all(record.keys() == {"uid", "prompt", "response", "finish_reason", "response_length"} for record in records)
    assert all(1 <= record["response_length"] <= 8 for record in records)


def test_evaluate_reports_pass_at_k(workplace: Path, tuned: Path) -> None:
    settings = overrides(workplace, f"model.path='{tuned / 'hf_checkpoint'}'", "rollout.val_kwargs.n=4")
    settings.append(f"data.val_files=['{workplace / 'prompts.jsonl'}']")
    output = run(workplace, "evaluate", *settings, "trainer.experiment_name=grading", "trainer.n_gpus_per_node=2")
    found = json.loads((_latest(workplace, "grading") / "evaluation.json").read_text())
    assert found.keys() == {"val/reward/mean", "val/accuracy/mean", "val/num_prompts", "val/pass@1", "val/pass@2", "val/pass@4"}
    assert found["val/num_prompts"] == NUM_ROWS
    assert 0 <= found["val/pass@1"] <= found["val/pass@2"] <= found["val/pass@4"] <= 1
    assert found["val/pass@1"] == pytest.approx(found["val/accuracy/mean"])
    assert '"val/pass@4"' in output


@pytest.mark.slow
def test_train_on_four_ranks_from_another_directory(workplace: Path) -> None:
    settings = overrides(
        workplace,
        "algorithm=grpo",
        "actor.parallel.tensor=2",
        "actor.parallel.pipeline=2",
        "rollout.tensor_parallel_size=1",
        "trainer.total_training_steps=3",
        "trainer.save_hf_at_end=true",
        "trainer.experiment_name=four",
        f"data.val_files=['{workplace / 'prompts.jsonl'}']",
    )
    run(workplace, "train", *settings)
    latest = _latest(workplace, "four")
    records = read_metrics(latest / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3]
    assert all(record.keys() >= STEP_KEYS for record in records)
    assert [record.get("val/step") for record in records] == [0, None, 3]
    assert "val/reward/mean" in records[0] and "val/reward/mean" in records[2]
    assert all(record["sync/bound_ratio"] >= 1.0 and record["sync/bytes_received"] > 0 for record in records)
    assert max(record["rollout_corr/logprob_diff_mean"] for record in records) < 1e-4
    config = read_run_config(latest)
    assert (config.actor.parallel.tensor, config.actor.parallel.pipeline, config.actor.parallel.data) == (2, 2, 1)
    assert config.rollout.data_parallel_size == 4
    assert (latest / "config.yaml").exists()
    assert (latest / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert len((latest / "samples.jsonl").read_text().splitlines()) == 3 * config.trainer.log_samples
    load_policy(latest / "hf_checkpoint")


def _wait_for_steps(command: Command, folder: Path, count: int) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and command.process.poll() is None:
        if any(len(read_metrics(file)) > count for file in folder.glob("2*/metrics.jsonl")):
            return
        time.sleep(0.1)
    raise AssertionError(command.output)


@pytest.mark.slow
def test_two_runs_at_once_one_stopped_one_killed_and_restarted(workplace: Path) -> None:
    before = abandoned_segments()
    layouts = ("rollout.tensor_parallel_size=2", "actor.parallel.tensor=2")
    shared = (*layouts, "trainer.save_freq=1", "trainer.total_training_steps=500")
    first = start(workplace, "train", *overrides(workplace, *shared, "trainer.experiment_name=first"))
    second = start(workplace, "train", *overrides(workplace, *shared, "trainer.experiment_name=second"))
    experiments = workplace / "outputs" / "megatron_rl"
    _wait_for_steps(first, experiments / "first", 2)
    _wait_for_steps(second, experiments / "second", 2)
    for pid in first.processes():
        os.kill(pid, signal.SIGKILL)
    second.process.send_signal(signal.SIGTERM)
    assert second.finish() == EXIT_CODE_REQUEUE, second.output
    assert not first.survivors() and not second.survivors()
    stopped = read_metrics(experiments / "second" / "latest" / "metrics.jsonl")
    killed = read_metrics(experiments / "first" / "latest" / "metrics.jsonl")
    saved = sorted(path.name for path in (experiments / "second" / "checkpoints").glob("step_*"))
    assert saved[-1] == f"step_{int(stopped[-1]['step'] or 0):08d}"
    steps = f"trainer.total_training_steps={int(killed[-1]['step'] or 0) + 2}"
    run(workplace, "train", *overrides(workplace, *shared, "trainer.experiment_name=first"), steps)
    resumed = [int(record["step"] or 0) for record in read_metrics(experiments / "first" / "latest" / "metrics.jsonl")]
    assert resumed[0] > 1 and resumed[-1] == int(killed[-1]["step"] or 0) + 2
    assert abandoned_segments() <= before
