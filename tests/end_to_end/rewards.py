"""Rewards of the end-to-end runs: functions of response and row, so that a mixed-up sample is noticed."""

from __future__ import annotations

import os
from typing import Any


def spread(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """One of five values: spread enough that no group is all equal for long."""
    assert prompt == row["prompt"], f"the reward of {row['prompt']!r} was asked with the prompt {prompt!r}"
    return (3 * len(response.encode()) + sum(response.encode()) + int(answer)) % 5 / 4


def broken_on_rank_1(prompt: str, response: str, answer: str, row: dict[str, Any]) -> float:
    """Fails in the worker processes of rank 1 only."""
    if os.environ["RANK"] == "1":
        raise ArithmeticError("this scorer is broken on purpose")
    return 0.0
