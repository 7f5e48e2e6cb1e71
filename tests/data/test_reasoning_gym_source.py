import re

import pytest

from megatron_rl.config.data import ReasoningGymConfig
from megatron_rl.data.reasoning_gym_source import reasoning_gym_rows, split_of


def _task(**changes: object) -> ReasoningGymConfig:
    values: dict[str, object] = {"task": "spell_backward", "task_kwargs": {"min_word_len": 3, "max_word_len": 5}}
    return ReasoningGymConfig.model_validate(values | {"train_size": 400, "val_size": 60} | changes)


def _questions(config: ReasoningGymConfig, split: str) -> list[str]:
    return [row.values["question"] for row in reasoning_gym_rows(config, split)]  # type: ignore[arg-type]


def test_reasoning_gym_rows_are_unique_and_of_the_asked_size() -> None:
    train, val = _questions(_task(), "train"), _questions(_task(), "val")
    assert (len(set(train)), len(set(val))) == (400, 60) == (len(train), len(val))


def test_reasoning_gym_rows_never_share_a_question_between_splits_of_any_seeds() -> None:
    train = {question.casefold() for seed in range(3) for question in _questions(_task(seed=seed), "train")}
    val = {question.casefold() for seed in range(3) for question in _questions(_task(seed=seed), "val")}
    assert not train & val


def test_reasoning_gym_rows_of_nearby_seeds_differ() -> None:
    a, b = _questions(_task(seed=0), "train"), _questions(_task(seed=1), "train")
    assert a[1:] != b[:-1]
    assert len(set(a) & set(b)) < 100


def test_reasoning_gym_rows_are_reproducible_and_do_not_depend_on_size() -> None:
    long, short = reasoning_gym_rows(_task(), "train"), reasoning_gym_rows(_task(train_size=50), "train")
    assert long[:50] == short == reasoning_gym_rows(_task(), "train", max_rows=50)


def test_reasoning_gym_rows_append_the_suffix_to_the_prompt_only() -> None:
    row = reasoning_gym_rows(_task(prompt_suffix=" =>"), "train")[0]
    assert row.values["prompt"] == row.values["question"] + " =>"
    assert row.values["answer"] == row.values["metadata"]["word"][::-1]
    assert row.uid == f"spell_backward:{row.index}"


def test_reasoning_gym_rows_repeat_as_the_task_draws() -> None:
    """Half of chain_sum's draws have one digit; few different questions have."""
    task = {"task": "chain_sum", "task_kwargs": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}}

    def one_digit_frac(repeat: bool) -> float:
        found = _questions(_task(**task, train_size=2000, repeat=repeat), "train")
        return sum(re.search(r": \d [-+] \d =", question) is not None for question in found) / len(found)

    assert one_digit_frac(True) == pytest.approx(0.5, abs=0.05)
    assert one_digit_frac(False) < 0.12
    repeated = _task(**task, repeat=True)
    assert not set(_questions(repeated, "train")) & set(_questions(repeated, "val"))
    rows = reasoning_gym_rows(repeated, "train")
    assert len({row.uid for row in rows}) == len(rows), "an equal question is a row of its own"


def test_split_of_ignores_case_and_spacing() -> None:
    assert len({split_of(text) for text in ("Spell Ohm", "spell  ohm ", "SPELL OHM")}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "spell_forward"}, r"data\.reasoning_gym\.task='spell_forward' is no reasoning-gym task"),
        ({"task_kwargs": {"min_wrod_len": 3}}, r"data\.reasoning_gym\.task_kwargs=.*spell_backward refuses them"),
        ({"task_kwargs": {"min_word_len": 9, "max_word_len": 3}}, r"data\.reasoning_gym\.task_kwargs="),
        (
            {"task": "chain_sum", "task_kwargs": {"min_terms": 2, "max_terms": 2, "max_digits": 1}},
            r"data\.reasoning_gym\.train_size=400: chain_sum gave only \d+ different train questions",
        ),
    ],
    ids=["unknown_task", "unknown_argument", "impossible_argument", "too_few_questions"],
)
def test_reasoning_gym_rows_reject_bad_tasks(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reasoning_gym_rows(_task(**changes), "train")
