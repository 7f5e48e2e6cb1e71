"""Rewards of mathematical answers."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from megatron_rl.rewards.reward import BaseRewardModel, RewardSample

# A sign counts only where it cannot be an operator: "12-5" ends in 5, "= -5" in -5.
_NUMBER = re.compile(r"(?:(?<![\w.)\]])[-+])?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?!\w))?")


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text, exactly; thousands separators, decimals and exponents are understood."""
    found = _NUMBER.findall(text.replace("\u2212", "-"))
    return Fraction(found[-1].replace(",", "")) if found else None


def last_number_match(prompt: str, response: str, answer: Any, row: dict[str, Any]) -> float:
    """Return 1 where the last number of the response equals the answer's, else 0.

    Raises:
        ValueError: The reference answer holds no number.
    """
    return float(last_number(response) == _reference(answer))


def last_number_digits(prompt: str, response: str, answer: Any, row: dict[str, Any]) -> float:
    """Return 1 where the last number of the response equals the answer's, else half the share of its places that are right.

    Places are the sign and the decimal digits, counted from the ones; a longer number is as wrong in each place too many. So
    answers that are all wrong still differ, and a group of samples has something to learn from. A wrong answer stays at or
    below 0.5, which validation counts as wrong. Where either number is no integer, a wrong answer scores 0.

    Raises:
        ValueError: The reference answer holds no number.
    """
    expected, found = _reference(answer), last_number(response)
    if found == expected:
        return 1.0
    if found is None or expected.denominator != 1 or found.denominator != 1:
        return 0.0
    digits = str(abs(expected.numerator))[::-1], str(abs(found.numerator))[::-1]
    matching = sum(a == b for a, b in zip(*digits, strict=False)) + ((expected < 0) == (found < 0))
    return 0.5 * matching / (1 + max(map(len, digits)))


def _reference(answer: Any) -> Fraction:
    expected = last_number(str(answer))
    if expected is None:
        raise ValueError(f"the reference answer {answer!r} holds no number")
    return expected


class MathVerify(BaseRewardModel):
    """Symbolic equality by math-verify: LaTeX, boxed answers, fractions, sets, equations.

    Its own alarm-based time limits are off: the pool's limit also ends what an alarm cannot.
    """

    def __init__(self, float_rounding: int = 6) -> None:
        """Import math-verify once, before workers are forked.

        Args:
            float_rounding: Decimals to which floats are compared.
        """
        import math_verify

        self._library = math_verify
        self._float_rounding = float_rounding

    def forward(self, sample: RewardSample) -> float:
        """Return 1 where the response's answer equals the reference, else 0; an unreadable response scores 0.

        Raises:
            ValueError: The *reference* cannot be read: that is a fault of the data, not of the model.
        """
        expected = [] if sample.answer is None else self._parsed(f"${sample.answer}$") or self._parsed(str(sample.answer))
        if not expected:
            raise ValueError(f"math-verify cannot read the reference answer {sample.answer!r}")
        found = self._parsed(sample.response)
        return float(
            bool(found) and self._library.verify(expected, found, float_rounding=self._float_rounding, timeout_seconds=None)
        )

    def _parsed(self, text: str) -> list[Any]:
        return list(self._library.parse(text, parsing_timeout=None))
