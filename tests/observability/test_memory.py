"""Peaks by phase, from scripted readings and from this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.observability.memory import HostGauge, PhaseMemory, host_gauge, memory_metrics
from megatron_rl.observability.memory_summary import MemorySummary, read_memory_summary, write_memory_summary
from megatron_rl.observability.timers import Timers
from megatron_rl.types.metrics import to_floats


class ScriptedGauge:
    def __init__(self, *readings: dict[str, float]) -> None:
        self.readings = list(readings)
        self.restarts = 0

    def restart(self) -> None:
        self.restarts += 1

    def read(self) -> dict[str, float]:
        return self.readings.pop(0)


def test_phase_memory_keeps_the_larger_peak_of_a_repeated_phase() -> None:
    memory = PhaseMemory(ScriptedGauge({"cpu": 2.0}, {"cpu": 5.0}, {"cpu": 3.0}))
    timers = Timers(watches=[memory])
    for phase in ("gen", "ref", "gen"):
        with timers(phase):
            pass
    assert memory.flush() == {"gen": {"cpu": 3.0}, "ref": {"cpu": 5.0}}
    assert memory.flush() == {}
    assert memory.attempt == {"gen": {"cpu": 3.0}, "ref": {"cpu": 5.0}}


def test_memory_metrics_matches_hand_computed() -> None:
    peaks = {
        "gen": {"allocated": 10.0, "reserved": 12.0, "device": 15.0, "cpu": 4.0},
        "update_actor": {"allocated": 30.0, "reserved": 40.0, "device": 45.0, "cpu": 3.0},
    }
    assert to_floats(memory_metrics(peaks)) == {
        "memory/gen_gib": 10.0,
        "memory/update_actor_gib": 30.0,
        "perf/cuda_memory_allocated_gb": 30.0,
        "perf/cuda_memory_reserved_gb": 40.0,
        "perf/cpu_memory_used_gb": 4.0,
    }


def test_host_gauge_sees_memory_that_is_gone_again() -> None:
    gauge = host_gauge()
    if not isinstance(gauge, HostGauge):
        pytest.skip("this kernel cannot forget a peak")
    gauge.restart()
    before = gauge.read()["cpu"]
    block = bytearray(b"x") * (256 << 20)
    del block
    assert gauge.read()["cpu"] - before == pytest.approx(0.25, abs=0.05)
    gauge.restart()
    assert gauge.read()["cpu"] < before + 0.05


def test_write_memory_summary_roundtrips(tmp_path: Path) -> None:
    summary = MemorySummary(None, {0: {"gen": {"cpu": 1.5}}, 1: {"gen": {"cpu": 1.25}}})
    write_memory_summary(tmp_path, summary)
    assert read_memory_summary(tmp_path) == summary
