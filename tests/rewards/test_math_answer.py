from collections.abc import Callable
from fractions import Fraction

import pytest

from megatron_rl.rewards.math_answer import MathVerify, last_number, last_number_digits, last_number_match
from megatron_rl.rewards.reward import RewardSample


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2 + 2 = 4", "4"),
        ("it is 42.", "42"),
        ("= -5", "-5"),
        ("7-12", "12"),
        ("(3)-4", "4"),
        ("about \u22127 degrees", "-7"),
        ("1,234,567 people", "1234567"),
        ("pick 1,2,3", "3"),
        ("3.50", "3.5"),
        ("1e3", "1000"),
        ("x2 is 8", "8"),
        ("no digits", None),
    ],
)
def test_last_number_matches_hand_computed(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Fraction(number))


@pytest.mark.parametrize(
    ("response", "reward"), [("12, so 34", 1.0), ("the answer is 34.0", 1.0), ("34, not 12", 0.0), ("none", 0.0)]
)
def test_last_number_match_matches_hand_computed(response: str, reward: float) -> None:
    assert last_number_match("", response, "34", {}) == reward


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("37", "37", 1.0),
        ("= -37.0", "-37", 1.0),
        ("47", "37", 0.5 * 2 / 3),  # ones and sign
        ("-37", "37", 0.5 * 2 / 3),  # both digits
        ("137", "37", 0.5 * 3 / 4),
        ("7", "137", 0.5 * 2 / 4),
        ("21", "-3", 0.0),
        ("none", "37", 0.0),
        ("3.7", "37", 0.0),
        ("1", "1.5", 0.0),
    ],
)
def test_last_number_digits_matches_hand_computed(response: str, answer: str, reward: float) -> None:
    assert last_number_digits("", response, answer, {}) == pytest.approx(reward)


@pytest.mark.parametrize("score", [last_number_match, last_number_digits])
def test_last_number_rewards_reject_answer_without_number(score: Callable[..., float]) -> None:
    with pytest.raises(ValueError, match="holds no number"):
        score("", "3", None, {})


@pytest.fixture(scope="module")
def math_verify() -> MathVerify:
    return MathVerify()


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"Hence $x^2 + 2x + 1$", "(x+1)^2", 1.0),
        (r"\boxed{3}", "4", 0.0),
        ("the answer is 12", "12", 1.0),
        ("I do not know", "12", 0.0),
        ("", "12", 0.0),
        (r"\boxed{\{1,2\}}", r"\{2,1\}", 1.0),
    ],
)
def test_math_verify_matches_hand_computed(math_verify: MathVerify, response: str, answer: str, reward: float) -> None:
    sample = RewardSample(uid="t:0", prompt="", response=response, row={"answer": answer})
    assert math_verify.forward(sample) == reward


@pytest.mark.parametrize("answer", [None, ""])
def test_math_verify_rejects_unreadable_reference(math_verify: MathVerify, answer: str | None) -> None:
    sample = RewardSample(uid="t:0", prompt="", response="1", row={"answer": answer})
    with pytest.raises(ValueError, match="cannot read the reference answer"):
        math_verify.forward(sample)
