"""The sample log."""

from __future__ import annotations

import json
from types import SimpleNamespace

import torch

from megatron_rl.observability.samples import SampleLog
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.prompts import Prompt, PromptBatch


def make_result():
    prompts = tuple(Prompt(uid=f"train:{p}", token_ids=(1,), text=f"question {p}", row={}) for p in range(2))
    rollouts = RolloutBatch(
        tokens_BS=torch.zeros(4, 2, dtype=torch.int64),
        prompt_lengths_B=torch.tensor([3, 3, 1, 1]),
        response_lengths_B=torch.tensor([1, 2, 1, 0]),
        rollout_logprobs_BS=torch.zeros(4, 2),
        group_ids_B=torch.tensor([0, 0, 1, 1]),
        finish_reasons=("stop", "length", "stop", "abort"),
        policy_version=0,
    )
    scored = SimpleNamespace(responses=("a0", "é", "b0", "b1"), rewards_B=torch.tensor([0.0, 0.25, 1.0, 0.5]))
    return SimpleNamespace(
        prompts=PromptBatch(prompts=prompts, epoch=0),
        rollouts=rollouts,
        scored=scored,
        trained_B=torch.tensor([True, True, False, False]),
    )


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_sample_log_joins_prompt_response_and_reward(tmp_path):
    SampleLog(tmp_path / "samples.jsonl", 4).write(7, make_result())
    records = read(tmp_path / "samples.jsonl")
    assert records[1] == {
        "step": 7,
        "uid": "train:0",
        "prompt": "question 0",
        "response": "é",
        "reward": 0.25,
        "trained": True,
        "finish_reason": "length",
        "prompt_length": 3,
        "response_length": 2,
    }
    assert [r["trained"] for r in records] == [True, True, False, False]
    assert [(r["uid"], r["response"]) for r in records] == [
        ("train:0", "a0"),
        ("train:0", "é"),
        ("train:1", "b0"),
        ("train:1", "b1"),
    ]


def test_few_samples_are_spread_over_the_prompts(tmp_path):
    SampleLog(tmp_path / "samples.jsonl", 2).write(1, make_result())
    assert [record["uid"] for record in read(tmp_path / "samples.jsonl")] == ["train:0", "train:1"]


def test_resumed_sample_log_continues(tmp_path):
    for steps in ((1, 2), (2, 3)):
        log = SampleLog(tmp_path / "samples.jsonl", 1)
        for step in steps:
            log.write(step, make_result())
    assert [record["step"] for record in read(tmp_path / "samples.jsonl")] == [1, 2, 3]


def test_sample_log_without_path_writes_nothing(tmp_path):
    SampleLog(None, 4).write(1, make_result())
    SampleLog(tmp_path / "samples.jsonl", 0).write(1, make_result())
    assert list(tmp_path.iterdir()) == []
