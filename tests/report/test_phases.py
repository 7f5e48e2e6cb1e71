from __future__ import annotations

import pytest

from megatron_rl.report.phases import SlowStep, Timeline, phase_names, phase_shares, slow_steps, timeline


def timed(step: int, gen: float, update: float, **more: float) -> dict[str, float | None]:
    extra = {f"timing_s/{phase}": value for phase, value in more.items()}
    return {
        "step": step,
        "timing_s/update_actor": update,
        "timing_s/gen": gen,
        "timing_s/step": gen + update + sum(more.values()),
        **extra,
    }


USUAL = [timed(step, 1.0, 3.0) for step in range(1, 6)]


def test_phase_shares_match_hand_computed() -> None:
    gen, update = sorted(phase_shares([timed(1, 1.0, 3.0), timed(2, 2.0, 2.0)]), key=lambda share: share.phase)
    assert (gen.phase, gen.mean_s, gen.median_s, gen.max_s) == ("gen", 1.5, 1.5, 2.0)
    assert gen.share_frac == pytest.approx(3 / 8)
    assert update.share_frac == pytest.approx(5 / 8)


def test_phase_shares_count_a_phase_that_ran_once_over_all_steps() -> None:
    shares = {share.phase: share for share in phase_shares([*USUAL[:3], timed(4, 1.0, 3.0, save_checkpoint=4.0)])}
    assert shares["save_checkpoint"].mean_s == 1.0
    assert shares["save_checkpoint"].median_s == 0.0


def test_phase_names_follow_the_pipeline_and_leave_validation_out() -> None:
    record = {"step": 1, "timing_s/other": 1.0, "timing_s/new": 1.0, "timing_s/testing": 1.0, "timing_s/gen": 1.0}
    assert phase_names([record]) == ["gen", "other", "new"]


def test_slow_steps_blame_the_phase_that_grew_most() -> None:
    slow = slow_steps([*USUAL, timed(6, 4.0, 3.5), timed(7, 1.0, 3.0, save_checkpoint=9.0)])
    assert slow == [SlowStep(7, 13.0, 9.0, "save_checkpoint", 9.0), SlowStep(6, 7.5, 3.5, "gen", 3.0)]


@pytest.mark.parametrize("records", [[], USUAL[:2], [{"step": 0, "val/accuracy/mean": 0.1}]], ids=["none", "few", "untimed"])
def test_slow_steps_need_something_usual(records: list[dict[str, float | None]]) -> None:
    assert slow_steps(records) == []


def test_timeline_averages_neighbours_into_bins() -> None:
    records = [{"step": 0}, *(timed(step, float(step), 1.0) for step in range(1, 6))]
    assert timeline(records, max_bins=3) == Timeline(
        ["gen", "update_actor"], [(1, 2), (3, 4), (5, 5)], [[1.5, 3.5, 5.0], [1.0, 1.0, 1.0]]
    )
    assert timeline([], max_bins=3) == Timeline([], [], [])
