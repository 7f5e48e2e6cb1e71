"""Fits against closed forms."""

from __future__ import annotations

import pytest

from megatron_rl.estimator.least_squares import Observation, Unknown, fit_bounded

VAGUE = 1e6


def test_fit_bounded_matches_hand_computed() -> None:
    # 1 x = 3, 2 y = 8 and x + y = 7 agree on (3, 4).
    rows = [Observation((1, 0), 3, 1), Observation((0, 2), 8, 1), Observation((1, 1), 7, 1)]
    (x, _), (y, _) = fit_bounded([Unknown(0, VAGUE, 0), Unknown(0, VAGUE, 0)], rows)
    assert (x, y) == pytest.approx((3, 4))


def test_fit_bounded_weighs_belief_against_observation() -> None:
    # Two equal precisions meet half way, with the spread of two measurements.
    ((value, spread),) = fit_bounded([Unknown(1.0, 0.5, 0)], [Observation((1.0,), 2.0, 0.5)])
    assert value == pytest.approx(1.5) and spread == pytest.approx(0.5 / 2**0.5)


def test_fit_bounded_keeps_the_belief_where_nothing_was_observed() -> None:
    ((value, spread),) = fit_bounded([Unknown(2.0, 0.3, 0)], [])
    assert (value, spread) == pytest.approx((2.0, 0.3))


def test_fit_bounded_stays_within_bounds() -> None:
    # Without the bound x would be -1; the rest of the sum then goes to y.
    rows = [Observation((1, 0), -1, 1), Observation((1, 1), 3, 0.01)]
    (x, _), (y, _) = fit_bounded([Unknown(1, VAGUE, 0), Unknown(1, VAGUE, 0)], rows)
    assert x == 0 and y == pytest.approx(3, rel=1e-3)
