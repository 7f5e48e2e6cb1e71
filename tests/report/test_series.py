from __future__ import annotations

from megatron_rl.report.series import Series, mean_tail, metric_names, series, thin

RECORDS = [{"step": 1, "a": 0.5}, {"step": 2, "b": 1.0}, {"step": 4, "a": None, "b": None}]


def test_series_keeps_gaps_apart_from_steps_without_a_record() -> None:
    assert series(RECORDS, "a") == Series([1, 4], [0.5, None])
    assert series(RECORDS, "b") == Series([2, 4], [1.0, None])
    assert metric_names(RECORDS) == ["a", "b"]


def test_mean_tail_matches_hand_computed() -> None:
    assert mean_tail([9.0, 1.0, 2.0, 3.0], 3) == 2.0
    assert mean_tail([], 3) is None


def test_thin_keeps_ends_spikes_and_steps() -> None:
    values = [0.0] * 10_000
    values[4321], values[7777] = 50.0, -50.0
    thinned = thin(Series(list(range(10_000)), list(values)), 200)
    assert len(thinned.steps) <= 200
    assert thinned.steps[0] == 0 and thinned.steps[-1] == 9_999
    assert dict(zip(thinned.steps, thinned.values, strict=True))[4321] == 50.0
    assert dict(zip(thinned.steps, thinned.values, strict=True))[7777] == -50.0


def test_thin_reduces_to_identity_for_short_curves() -> None:
    short = Series([1, 2, 3], [0.1, None, 0.3])
    assert thin(short, 3) is short


def test_thin_keeps_a_stretch_without_values_as_a_gap() -> None:
    full = Series(list(range(1000)), [None if 400 <= i < 600 else float(i) for i in range(1000)])
    thinned = thin(full, 50)
    assert None in thinned.values
