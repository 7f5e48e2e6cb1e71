"""A probe as a measurement that the estimator can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.cli.compose import compose_run
from megatron_rl.config.run import RunConfig
from megatron_rl.config.world import with_world
from megatron_rl.estimator.estimate import measured_runs
from megatron_rl.estimator.measurements import CPU, Measurement, append_measurement, load_measurements, read_records
from megatron_rl.observability.sinks import Record
from megatron_rl.sweep.probe_record import catalogue_name, measurement_of, preset_of_shape

STEPS: list[Record] = [
    {
        "step": step,
        "prompt_length/mean": 6.0,
        "response_length/mean": 7.6,
        "timing_s/gen": gen,
        "timing_s/old_log_prob": 0.25,
        "timing_s/ref": 0.5,
        "timing_s/update_actor": 1.0,
        "timing_s/other": 0.125,
        "timing_s/reward": 0.125,
    }
    for step, gen in ((2, 1.0), (3, 3.0))
]


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return with_world(compose_run(["experiment=tiny_cpu", "actor.ppo_mini_batch_size=8"]), 4, 0)


def measured(config: RunConfig, gpu: str) -> Measurement:
    return measurement_of(
        config,
        STEPS,
        name="probe_x",
        num_ranks=4,
        gpu=gpu,
        preset="tiny",
        software="megatron-rl 0",
        peak_memory_gib={"gen": 1.5, "adv": 0.0},
        date="2026-01-01",
    )


def test_measurement_of_matches_hand_computed(config: RunConfig) -> None:
    record = measured(config, "H200-141GB")
    assert record.phase_seconds == {"rollout": 2.0, "scoring": 0.75, "update_actor": 1.0, "other": 0.25}
    assert record.phase_spread_s == {"rollout": 1.0}
    assert record.batch.model_dump() == {
        "samples": 256,
        "prompt_tokens": 6,
        "response_tokens": 8,
        # 8 prompts * 8 samples over DP 2: 32 samples of 14 tokens are less than the budget of 16,384.
        "micro_batch_tokens": 32 * 14,
        "optimizer_steps": 4,
    }
    assert record.layout.model_dump() == {"tensor": 2, "pipeline": 1, "data": 2, "rollout_tensor": 1, "rollout_data": 4}
    assert record.peak_memory_gib == {"gen": 1.5}
    assert record.use == "calibration"


def test_measurement_roundtrips_through_the_estimators_store(config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "measurements.json"
    on_gpu, on_cpu = measured(config, "H200-141GB"), measured(config, CPU)
    append_measurement(path, on_cpu)
    append_measurement(path, on_gpu)
    assert read_records(path) == (on_cpu, on_gpu)
    assert on_cpu.use == "context"
    assert [run.record for run in measured_runs(load_measurements(path))][-1] == on_gpu
    assert on_cpu not in load_measurements(path)


@pytest.mark.parametrize(
    ("device", "card_gib", "expected"),
    [
        ("NVIDIA H200", 139.8, "H200-141GB"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100-80GB"),
        ("NVIDIA GeForce RTX 9999", 24.0, None),
        ("x86_64", None, CPU),
    ],
)
def test_catalogue_name(device: str, card_gib: float | None, expected: str | None) -> None:
    assert catalogue_name(device, card_gib) == expected


def test_preset_of_shape_finds_the_preset_whatever_it_is_called(config: RunConfig) -> None:
    assert preset_of_shape(config.model) == "tiny"
    assert preset_of_shape(config.model.model_copy(update={"name": "mine", "path": "/models/mine"})) == "tiny"
    assert preset_of_shape(config.model.model_copy(update={"num_layers": 7})) is None
