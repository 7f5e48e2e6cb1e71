"""A rank that fails ends the whole job at once, says why last, and leaves nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.end_to_end.commands import abandoned_segments, start
from tests.end_to_end.tiny_assets import NUM_ROWS, overrides, write_assets, write_rows

WITHIN_S = 30.0
"""From the failure to the end of the command."""
STARTED_AND_REFUSED_S = 90.0
"""Two processes import torch on a busy host; no model and no engine is built."""


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_assets(tmp_path_factory.mktemp("assets"))


@pytest.mark.parametrize(
    ("task", "fault", "code", "first", "last"),
    [
        pytest.param(
            "sft", "0:update:oom", 1, "rank 0", "out of memory in phase update_actor on rank 0", id="update-has-no-room"
        ),
        pytest.param("sft", "1:update:kill", 137, "rank 1", "killed by SIGKILL", id="update-killed"),
        # The ranks tell each other before they raise, so any of them may be the first to end.
        pytest.param(
            "generate",
            "1:generate:raise",
            1,
            "rank",
            "rollout failed on rank 1: ZeroDivisionError: this rank is broken",
            id="generate-raises",
            marks=pytest.mark.vllm,
        ),
    ],
)
def test_failing_rank_ends_the_job(
    task: str, fault: str, code: int, first: str, last: str, assets: Path, tmp_path: Path
) -> None:
    before = abandoned_segments()
    pairs = f"sft.train_files=['{assets / 'pairs.jsonl'}']"
    settings = overrides(assets, "trainer.n_gpus_per_node=2", pairs, "sft.batch_size=4", "generate.split=train")
    moment = tmp_path / "moment"
    command = start(tmp_path, task, *settings, module="tests.end_to_end.faulty_worker", FAULT=fault, FAULT_FILE=str(moment))
    assert command.finish() == code, command.output
    assert time.time() - float(moment.read_text()) < WITHIN_S
    explanation = command.output[command.output.rindex("error: rank") :]
    assert explanation.startswith(f"error: {first}")
    assert last in explanation
    assert "oom" not in fault or "actor.recompute.granularity=full (now null)" in explanation.splitlines()[-1]
    assert not command.survivors()
    assert abandoned_segments() <= before


@pytest.mark.vllm
def test_broken_reward_on_one_rank_ends_the_job(assets: Path, tmp_path: Path) -> None:
    command = start(
        tmp_path,
        "evaluate",
        *overrides(assets, "trainer.n_gpus_per_node=2", f"data.val_files=['{assets / 'prompts.jsonl'}']"),
        "reward.function=tests.end_to_end.rewards:broken_on_rank_1",
    )
    assert command.finish() != 0
    explanation = command.output[command.output.rindex("error: rank") :]
    assert "this scorer is broken on purpose" in explanation
    assert "prompts.jsonl" in explanation
    assert not command.survivors()


def test_over_long_prompt_is_named_within_seconds(tmp_path: Path) -> None:
    write_assets(tmp_path)
    rows = [{"prompt": "short", "answer": "1"}, {"prompt": "x" * 17, "answer": "2"}, {"prompt": "short", "answer": "3"}]
    file = write_rows(tmp_path / "three.jsonl", rows)
    started = time.monotonic()
    command = start(
        tmp_path,
        "train",
        *overrides(tmp_path, f"data.train_files=['{file}']", "data.train_batch_size=2", "trainer.n_gpus_per_node=2"),
    )
    assert command.finish() != 0
    assert time.monotonic() - started < STARTED_AND_REFUSED_S
    tail = "\n".join(command.output.splitlines()[-25:])
    assert all(part in tail for part in ("three.jsonl", "17", "data.max_prompt_length=16", "row 1")), tail
    assert NUM_ROWS and not command.survivors()
