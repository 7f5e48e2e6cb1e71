from __future__ import annotations

import pytest

from megatron_rl.report.units import binary_size, plain, seconds, with_unit


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.82421875, "0.8242"), (1234.5, "1,234"), (3.405e-7, "3.41e-7"), (-2e6, "-2e6"), (1e20, "1e20")],
)
def test_plain_matches_hand_computed(value: float, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 s"), (2e-6, "2 µs"), (0.0053, "5.3 ms"), (1.27, "1.27 s"), (120, "2 min"), (9000, "2.5 h")]
)
def test_seconds_matches_hand_computed(value: float, text: str) -> None:
    assert seconds(value) == text


def test_with_unit_matches_hand_computed() -> None:
    assert with_unit(None, "s") == "—"
    assert with_unit(3 * 2**30, "bytes") == "3 GiB"
    assert with_unit(5.5, "tokens") == "5.5 tokens"
    assert binary_size(2**41) == "2 TiB"
