"""The rules of a probe's verdict, one by one."""

from __future__ import annotations

import pytest

from megatron_rl.sweep.step_statistics import Trend, trend
from megatron_rl.sweep.verdict import Projection, judge_failure, judge_learning, judge_memory, judge_speed, project


def test_project_matches_hand_computed() -> None:
    assert project(36.0, 1000, 8, 2.5) == Projection(total_steps=1000, hours=10.0, gpu_hours=80.0, cost_usd=200.0)
    assert project(36.0, 1000, 8, None).cost_usd is None


@pytest.mark.parametrize(
    ("peak", "card", "answer", "words"),
    [
        (70.0, 80.0, "yes", "88%"),
        (73.0, 80.0, "unclear", "tight"),
        (3.0, None, "yes", "peak 3.00 GiB a rank"),
    ],
    ids=["room", "tight", "cpu"],
)
def test_judge_memory(peak: float, card: float | None, answer: str, words: str) -> None:
    judgement = judge_memory(peak, card, 512, 512)
    assert (judgement.answer, judgement.question) == (answer, "fits")
    assert words in judgement.reason and "longest response" not in judgement.reason


def test_judge_memory_says_when_no_long_response_was_seen() -> None:
    assert "the longest response had 100 of 512 tokens" in judge_memory(10.0, 80.0, 100, 512).reason


def rewards(*values: float) -> Trend:
    return trend([(step, value) for step, value in enumerate(values, 1)])


@pytest.mark.parametrize(
    ("reward", "answer", "words"),
    [
        (None, "unclear", "no reward"),
        (rewards(0.1, 0.9), "unclear", "2 steps tell nothing"),
        (rewards(*[0.1, 0.2] * 2, *[0.3, 0.5] * 2, *[0.6, 0.8] * 2), "yes", "t = "),
        (rewards(*[0.8, 0.6] * 2, *[0.5, 0.3] * 2, *[0.2, 0.1] * 2), "no", "t = -"),
        (rewards(*[0.4, 0.6] * 6), "unclear", "within its noise"),
        (rewards(*[0.25] * 12), "no", "never changes from 0.250"),
        (rewards(*[0.125 * step for step in range(12)]), "yes", "+0.12 a step"),
    ],
    ids=["none", "short", "rises", "falls", "noise", "constant", "exact_line"],
)
def test_judge_learning(reward: Trend | None, answer: str, words: str) -> None:
    judgement = judge_learning(reward)
    assert judgement.answer == answer, judgement
    assert words in judgement.reason


@pytest.mark.parametrize(("limit", "answer"), [(None, "unclear"), (10.0, "yes"), (9.9, "no")])
def test_judge_speed(limit: float | None, answer: str) -> None:
    assert judge_speed(project(36.0, 1000, 8, None), limit).answer == answer


@pytest.mark.parametrize(
    ("reason", "question"),
    [
        ("rank 0 (exit code 1): torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "fits"),
        ("rank 1 (killed by SIGKILL)", "fits"),
        ("rank 1 (exit code 1): ValueError: bad reward", "runs"),
    ],
    ids=["cuda", "killed", "other"],
)
def test_judge_failure(reason: str, question: str) -> None:
    judgement = judge_failure(reason)
    assert (judgement.question, judgement.answer, judgement.reason) == (question, "no", reason)
