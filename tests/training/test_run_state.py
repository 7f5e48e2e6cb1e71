"""When a run saves."""

from __future__ import annotations

import pytest

from megatron_rl.training.run_state import saves_after


@pytest.mark.parametrize(
    ("step", "save_freq", "interrupted", "expected"),
    [
        (2, 2, False, True),
        (3, 2, False, False),
        (5, 2, False, True),
        (5, -1, False, False),
        (3, 2, True, True),
        (3, -1, True, True),
        (5, -1, True, False),
    ],
    ids=["due", "between", "last", "last_never_saved", "interrupted", "interrupted_never_saved", "interrupted_when_done"],
)
def test_saves_after_matches_hand_computed(step: int, save_freq: int, interrupted: bool, expected: bool) -> None:
    assert saves_after(step, 5, save_freq=save_freq, interrupted=interrupted) is expected
