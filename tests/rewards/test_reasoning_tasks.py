from typing import Any

import pytest

from megatron_rl.rewards.reasoning_tasks import TaskScore, exact_match
from megatron_rl.rewards.reward import RewardSample

_ROW = {"question": "q", "answer": "olleh", "metadata": {"source_dataset": "spell_backward", "word": "hello"}}


def _sample(response: str, row: dict[str, Any] = _ROW) -> RewardSample:
    return RewardSample(uid="t:0", prompt="q", response=response, row=row)


@pytest.mark.parametrize(
    ("response", "reward"), [("olleH", 1.0), ("olleh", 0.0), ("olleH\n", 0.0), ("olle\ufffdH", 0.0), ("", 0.0)]
)
def test_exact_match_counts_every_character(response: str, reward: float) -> None:
    assert exact_match("q", response, "olleH", {}) == reward


def test_exact_match_rejects_a_row_without_answer() -> None:
    with pytest.raises(ValueError, match=r"data\.answer_key"):
        exact_match("q", "a", None, {})


@pytest.mark.parametrize(("response", "reward"), [("olleh", 1.0), (" OLLEH\n", 1.0), ("olle", 0.8), ("", 0.0)])
def test_task_score_matches_reference(response: str, reward: float) -> None:
    assert TaskScore().forward(_sample(response)) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("response", "reward"),
    [("<answer>x</answer> no: <answer> olleh </answer>", 1.0), ("olleh", 0.0)],
    ids=["last_tag", "no_tag"],
)
def test_task_score_reads_answer_tags(response: str, reward: float) -> None:
    assert TaskScore(answer_tag=True).forward(_sample(response)) == reward


def test_task_score_rejects_rows_of_other_sources() -> None:
    with pytest.raises(ValueError, match=r"data\.reasoning_gym"):
        TaskScore().forward(_sample("a", {"answer": "a"}))
