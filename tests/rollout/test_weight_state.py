"""When an engine's weights may be sampled from."""

from __future__ import annotations

import pytest

from megatron_rl.rollout.weight_state import WeightState


def _synced(version: int = 3) -> WeightState:
    state = WeightState()
    state.begin_update()
    state.finish_update(version)
    return state


def test_require_ready_rejects_an_engine_that_was_never_synced() -> None:
    with pytest.raises(RuntimeError, match="no valid weights"):
        WeightState().require_ready()


def test_require_ready_accepts_a_finished_update() -> None:
    state = _synced(3)
    state.require_ready()
    assert state.version == 3


def test_require_ready_rejects_an_update_in_progress() -> None:
    state = _synced()
    state.begin_update()
    assert state.version is None
    with pytest.raises(RuntimeError, match="being updated"):
        state.require_ready()


def test_sleep_level_1_keeps_the_weights() -> None:
    state = _synced(5)
    state.sleep(1)
    with pytest.raises(RuntimeError, match="sleeps"):
        state.require_ready()
    state.wake(["weights", "kv_cache"])
    state.require_ready()
    assert state.version == 5


def test_sleep_level_2_needs_a_new_update() -> None:
    state = _synced()
    state.sleep(2)
    state.wake(["weights", "kv_cache"])
    with pytest.raises(RuntimeError, match="no valid weights"):
        state.require_ready()


def test_update_fits_between_waking_the_weights_and_the_cache() -> None:
    state = _synced()
    state.sleep(2)
    state.wake(["weights"])
    state.begin_update()
    state.finish_update(4)
    with pytest.raises(RuntimeError, match="kv_cache"):
        state.require_ready()
    state.wake(["kv_cache"])
    state.require_ready()


def test_sleep_before_the_first_update_then_wake_rejects_generate() -> None:
    state = WeightState()
    state.sleep(1)
    state.wake(["weights", "kv_cache"])
    with pytest.raises(RuntimeError, match="no valid weights"):
        state.require_ready()


def test_out_of_order_calls_are_rejected() -> None:
    state = WeightState()
    with pytest.raises(RuntimeError, match="without begin_weight_update"):
        state.finish_update(0)
    state.begin_update()
    with pytest.raises(RuntimeError, match="twice"):
        state.begin_update()
    with pytest.raises(RuntimeError, match="middle of a weight update"):
        state.sleep(1)
    sleeping = _synced()
    sleeping.sleep(1)
    with pytest.raises(RuntimeError, match="sleeping engine"):
        sleeping.begin_update()


def test_invalidate_rejects_generate_until_the_next_update_even_asleep() -> None:
    state = _synced()
    state.sleep(1)
    state.invalidate()
    state.wake(["weights", "kv_cache"])
    with pytest.raises(RuntimeError, match="the actor has moved on"):
        state.require_ready()
    state.begin_update()
    state.finish_update(4)
    state.require_ready()


def test_weights_outside_the_pool_survive_sleep_level_2() -> None:
    state = WeightState(survives_deep_sleep=True)
    state.begin_update()
    state.finish_update(6)
    state.sleep(2)
    state.wake(["weights", "kv_cache"])
    state.require_ready()
    assert state.version == 6
