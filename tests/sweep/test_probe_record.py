"""A probe as a measurement that the estimator can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.cli.compose import compose_run
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run import RunConfig
from megatron_rl.config.world import with_world
from megatron_rl.estimator.measured_run import measured_runs
from megatron_rl.estimator.measurements import CPU, Measurement, append_measurement, own_records, read_records
from megatron_rl.estimator.recorded_settings import recorded_config
from megatron_rl.observability.memory_summary import MemorySummary
from megatron_rl.observability.sinks import Record
from megatron_rl.sweep.probe_record import MeasuredJob, MeasuredMemory, catalogue_name, measurement_of, preset_of_shape

STEPS: list[Record] = [
    {
        "step": step,
        "prompt_length/mean": 6.0,
        "response_length/mean": 7.6,
        "timing_s/gen": gen,
        "timing_s/old_log_prob": 0.25,
        "timing_s/ref": 0.5,
        "timing_s/values": 1e-4,
        "timing_s/update_actor": 1.0,
        "timing_s/other": 0.125,
        "timing_s/reward": 0.125,
    }
    for step, gen in ((2, 1.0), (3, 3.0))
]


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return with_world(compose_run(["experiment=tiny_cpu", "actor.ppo_mini_batch_size=8", "actor.use_kl_loss=true"]), 4, 0)


def measured(config: RunConfig, device: str) -> Measurement:
    kind, card_gib = ("allocated", 139.8) if "NVIDIA" in device else ("cpu", None)
    peaks = {phase: {kind: gib} for phase, gib in (("gen", 1.5), ("adv", 0.0), ("old_log_prob", 2.0), ("values", 2.0))}
    job = MeasuredJob(config=config, records=STEPS, num_ranks=4, device=device, memory=MemorySummary(card_gib, {0: peaks}))
    return measurement_of(job, name="probe_x", source="test", date="2026-01-01")


def test_measurement_of_matches_hand_computed(config: RunConfig) -> None:
    """GRPO has no critic, so the microseconds around its absent passes are no phase."""
    record = measured(config, "NVIDIA H200")
    assert record.phase_seconds == {
        "rollout": 2.0,
        "score_actor": 0.25,
        "score_reference": 0.5,
        "update_actor": 1.0,
        "other": 0.25,
    }
    assert record.phase_spread_s == {"rollout": 1.0}
    assert record.batch.model_dump() == {
        "samples": 256,
        "samples_per_prompt": 8,
        "prompt_tokens": 6.0,
        "response_tokens": 7.6,
        "longest_response_tokens": 0.0,
        "squared_tokens": 0.0,
    }
    assert record.settings["actor.parallel.tensor"] == 2 and record.settings["rollout.n"] == 8
    assert record.peak_memory_gib == {"rollout": 1.5, "score_actor": 2.0}
    assert record.use == "calibration"


def test_measurement_roundtrips_through_the_estimators_store(config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "measurements.json"
    on_gpu, on_cpu = measured(config, "NVIDIA H200"), measured(config, "x86_64")
    append_measurement(path, on_cpu)
    append_measurement(path, on_gpu)
    assert read_records(path) == (on_cpu, on_gpu)
    assert on_cpu.use == "context"
    assert [run.record for run in measured_runs(own_records(path))] == [on_gpu]


def test_recorded_config_roundtrips(config: RunConfig) -> None:
    found, unnamed = recorded_config(measured(config, "NVIDIA H200")), {"load_path"}
    for section in ("actor", "critic", "ref", "rollout", "weight_sync", "algorithm"):
        assert getattr(found, section).model_dump(exclude=unnamed) == getattr(config, section).model_dump(exclude=unnamed)
    assert found.data.train_batch_size == config.data.train_batch_size


def test_recorded_config_rejects_a_key_of_another_version(config: RunConfig) -> None:
    record = measured(config, "NVIDIA H200").model_copy(update={"settings": {"rollout.beams": 2}})
    with pytest.raises(ConfigError, match=r"record probe_x: rollout\.beams"):
        recorded_config(record)


def test_measured_memory_takes_the_fullest_rank() -> None:
    first = {"gen": {"allocated": 2.0, "reserved": 3.0, "device": 4.0, "cpu": 9.0}}
    second = {"gen": {"allocated": 1.0, "reserved": 5.0, "device": 4.5, "cpu": 9.0}}
    found = MeasuredMemory.of_ranks([first, second])
    assert (found.allocated_gib, found.reserved_gib, found.device_gib) == ({"gen": 2.0}, 5.0, 4.5)
    on_cpu = MeasuredMemory.of_ranks([{"gen": {"cpu": 1.5}}])
    assert (on_cpu.allocated_gib, on_cpu.reserved_gib) == ({"gen": 1.5}, None)


def test_measurement_of_rejects_what_the_estimator_does_not_know(config: RunConfig) -> None:
    with pytest.raises(ValueError, match="NVIDIA GeForce RTX 9999 is not in the estimator's catalogue"):
        measured(config, "NVIDIA GeForce RTX 9999")
    odd = config.model_copy(update={"model": config.model.model_copy(update={"num_layers": 7})})
    with pytest.raises(ValueError, match="no model preset has this shape"):
        measured(odd, "NVIDIA H200")


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
