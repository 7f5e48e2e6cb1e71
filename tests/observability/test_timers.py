"""Phase timers on a fake clock."""

from __future__ import annotations

import pytest

from megatron_rl.observability.timers import Timers
from megatron_rl.types.metrics import to_floats


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def test_timers_matches_hand_computed():
    clock = FakeClock()
    timers = Timers(clock=clock)
    with timers.step():
        for seconds in (2.0, 3.0):
            with timers("gen"):
                clock.pass_s(seconds)
        clock.pass_s(0.5)
        with timers("update_actor"):
            clock.pass_s(4.5)
    values = to_floats(timers.flush())
    assert values == {"timing_s/gen": 5.0, "timing_s/update_actor": 4.5, "timing_s/step": 10.0, "timing_s/other": 0.5}
    assert values["timing_s/step"] == sum(v for name, v in values.items() if name != "timing_s/step")


def test_phase_outside_the_step_is_not_part_of_it():
    clock = FakeClock()
    timers = Timers(clock=clock)
    with timers.step(), timers("gen"):
        clock.pass_s(1.0)
    with timers("testing"):
        clock.pass_s(7.0)
    assert to_floats(timers.flush()) == {
        "timing_s/gen": 1.0,
        "timing_s/testing": 7.0,
        "timing_s/step": 1.0,
        "timing_s/other": 0.0,
    }


def test_flush_starts_over():
    timers = Timers(clock=FakeClock())
    with timers.step(), timers("gen"):
        pass
    timers.flush()
    assert timers.flush() == {}


def test_timers_wait_for_the_device():
    clock = FakeClock()
    pending = [3.0]
    timers = Timers(synchronize=lambda: clock.pass_s(pending.pop() if pending else 0.0), clock=clock)
    pending.clear()
    with timers("gen"):
        pending.append(3.0)
    assert to_floats(timers.flush()) == {"timing_s/gen": 3.0}


def test_failed_phase_leaves_the_timers_usable():
    clock = FakeClock()
    timers = Timers(clock=clock)
    with pytest.raises(RuntimeError), timers.step(), timers("gen"):
        clock.pass_s(1.0)
        raise RuntimeError
    with timers("gen"):
        clock.pass_s(1.0)
    assert to_floats(timers.flush())["timing_s/gen"] == 2.0


def test_timers_rejects_nested_phases():
    timers = Timers(clock=FakeClock())
    with pytest.raises(AssertionError, match="counted twice"), timers("update_actor"), timers("gen"):
        pass
