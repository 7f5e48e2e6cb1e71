from __future__ import annotations

import pytest

from megatron_rl.report.sparkline import bar, sparkline


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8, "▁▂▃▄▅▆▇█"),
        ([0.0, None, 7.0], 8, "▁ █"),
        ([3.0, 3.0], 8, "▁▁"),
        ([None, None], 8, "  "),
        ([], 8, ""),
        ([0.0, 0.0, 6.0, 8.0], 2, "▁█"),
    ],
    ids=["levels", "gap", "constant", "all-gaps", "empty", "averaged"],
)
def test_sparkline_matches_hand_computed(values: list[float | None], width: int, expected: str) -> None:
    assert sparkline(values, width) == expected


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, ""), (0.5, "█████"), (1.0, "██████████"), (2.0, "██████████"), (0.05, "▌")]
)
def test_bar_matches_hand_computed(share: float, expected: str) -> None:
    assert bar(share, 10) == expected
