"""The comparison's figures, from a run folder and a peer's record written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.smollm2_arithmetic.records import RunRecord, from_run_folder, from_trl_record, read_records, write_records
from examples.smollm2_arithmetic.runs import RUNS, command, places
from examples.smollm2_arithmetic.write_page import main as write_page
from megatron_rl.cli.compose import compose_run
from megatron_rl.config.validate import validate

REWARDS = (0.1, 0.1, 0.1, 0.1, 0.1, 0.6, 0.6, 0.6, 0.6, 0.6)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Ten steps of a second each, validations before training and after steps 5 and 10 of three seconds each."""
    folder = tmp_path / "run"
    folder.mkdir()
    lines = []
    for step, reward in enumerate(REWARDS, start=1):
        record = {
            "step": step,
            "perf/seconds_since_step": 1.0,
            "perf/total_num_tokens": 100.0,
            "reward/mean": reward,
            "rollout_corr/kl": None,
            "rollout_corr/logprob_diff_mean": 0.01,
            "timing_s/gen": 0.5,
            "memory/gen_gib": 2.0 + step,
        }
        if step == 1:
            record |= {"val/step": 0.0, "val/accuracy/mean": 0.05}
        if step in (5, 10):
            tested = {"val/step": float(step), "val/accuracy/mean": 0.1 * step - 0.1, "timing_s/testing": 3.0}
            record |= {**tested, "perf/seconds_since_step": 4.0}
        lines.append(json.dumps(record))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.json").write_text(
        json.dumps({"trainer": {"dtype": "bfloat16"}, "rollout": {"correction": {"mode": "none"}}})
    )
    (folder / "environment.json").write_text(
        json.dumps({"hardware": {"device": "CPU"}, "host": {"name": "secret"}, "versions": {"torch": "2.11.0"}})
    )
    sample = {"uid": "a", "prompt": "<|im_start|>user\n1 + 1 =<|im_end|>", "response": "It is 2.", "reward": 1.0}
    (folder / "samples.jsonl").write_text("".join(json.dumps({"step": step, **sample}) + "\n" for step in (1, 2, 10)))
    return folder


@pytest.fixture
def trl_file(tmp_path: Path) -> Path:
    """Six steps of two seconds; the last one was cut short before its log."""
    steps = [
        {"step": i, "seconds": 2.0, "wall_s": 2.0 * i, "reward/mean": 0.2, "tokens": 50.0 * i, "timing_s/gen": 1.0}
        for i in range(1, 7)
    ]
    steps.append({"step": 7, "seconds": 2.0, "wall_s": 14.0})
    validations = [{"step": 0, "wall_s": 0.0, "val/accuracy/mean": 0.05}, {"step": 6, "wall_s": 12.0, "val/accuracy/mean": 0.3}]
    file = tmp_path / "trl.json"
    content = {"settings": {"trl": "1.16.0"}, "steps": steps, "validations": validations, "peak_allocated_gib": 9.0}
    file.write_text(json.dumps(content))
    return file


def test_run_folder_matches_hand_computed(run_folder: Path) -> None:
    run = from_run_folder(run_folder)
    assert [row["wall_s"] for row in run.steps] == list(range(1, 11)), "validation is no training time"
    assert [(row["step"], row["wall_s"]) for row in run.validations] == [(0, 0.0), (5, 5.0), (10, 10.0)]
    assert run.peak_allocated_gib == 12.0
    assert run.tokens_per_second(skip=5) == 100.0
    assert run.median("rollout_corr/logprob_diff_mean") == 0.01 and run.median("rollout_corr/kl") is None
    assert [sample["step"] for sample in run.samples] == [1, 10]
    assert "host" not in run.environment


def test_times_to_levels_match_hand_computed(run_folder: Path) -> None:
    run = from_run_folder(run_folder)
    assert run.seconds_to_reward(0.1) == 5.0  # the first mean of five steps
    assert run.seconds_to_reward(0.39) == 8.0  # (0.1 + 0.1 + 3 * 0.6) / 5 = 0.4
    assert run.seconds_to_reward(0.7) is None
    assert run.seconds_to_accuracy(0.9) == 10.0
    assert (run.accuracy_at(9.0), run.accuracy_at(10.0), run.accuracy_at(11.0)) == (0.4, 0.9, None)


def test_trl_record_counts_tokens_by_step(trl_file: Path) -> None:
    run = from_trl_record(trl_file)
    assert len(run.steps) == 6, "the step without a log does not count"
    assert [row["tokens"] for row in run.steps] == [50.0] * 6


def test_records_roundtrips(run_folder: Path, trl_file: Path, tmp_path: Path) -> None:
    runs: dict[str, RunRecord] = {"grpo": from_run_folder(run_folder), "trl": from_trl_record(trl_file)}
    write_records(runs, tmp_path / "records.json")
    assert read_records(tmp_path / "records.json") == runs


def test_page_states_the_comparison_and_what_is_missing(run_folder: Path, trl_file: Path, tmp_path: Path) -> None:
    write_records({"grpo": from_run_folder(run_folder), "trl": from_trl_record(trl_file)}, tmp_path / "records.json")
    write_page(tmp_path / "records.json", tmp_path / "page" / "2026-12-01_cpu_smollm2")
    text = (tmp_path / "page" / "2026-12-01_cpu_smollm2.md").read_text()
    assert "2.00 times as many steps per second" in text
    assert "After 10 s of training, held-out accuracy is 0.900 against 0.050." in text
    assert "- step 10, reward 1. *1 + 1 =* `It is 2.`" in text
    assert "- megatron_rl, PPO with a critic" in text.partition("## Not measured")[2]
    assert {path.suffix for path in (tmp_path / "page").iterdir()} == {".md", ".json", ".png"}


@pytest.mark.parametrize("name", RUNS)
def test_planned_run_composes_and_validates(name: str, tmp_path: Path) -> None:
    overrides = [word for word in command(name, tmp_path, tmp_path) if "=" in word and not word.startswith("model.path")]
    config = compose_run(["experiment=smollm2_arithmetic", "model.tokenizer_path=x", *overrides, *RUNS[name].overrides])
    problems = [text for text in validate(config, task="train", world_size=1) if "tokenizer_path" not in text]
    assert problems == []


def test_runs_that_left_nothing_have_no_place(tmp_path: Path) -> None:
    (tmp_path / "trl.json").touch()
    (tmp_path / "megatron_rl" / "ppo" / "latest").mkdir(parents=True)
    assert places(tmp_path) == [f"trl={tmp_path / 'trl.json'}", f"ppo={tmp_path / 'megatron_rl' / 'ppo' / 'latest'}"]
