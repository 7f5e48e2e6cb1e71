"""Fits recover what made the data; stored records read and write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from megatron_rl.config.errors import ConfigError
from megatron_rl.estimator.calibration import MeasuredRun, engine_load, fit, update_efficiency
from megatron_rl.estimator.catalogue import find_gpu, gpus
from megatron_rl.estimator.coefficients import Coefficient, Coefficients
from megatron_rl.estimator.comparison import compare
from megatron_rl.estimator.decode import rollout_s
from megatron_rl.estimator.estimate import measured_runs
from megatron_rl.estimator.flops import train_flops
from megatron_rl.estimator.least_squares import fit_line, fit_two
from megatron_rl.estimator.measurements import (
    MeasuredBatch,
    Measurement,
    append_measurement,
    load_measurements,
    read_records,
)
from megatron_rl.estimator.presets import preset_model
from megatron_rl.estimator.recorded_settings import recorded_config

H200 = find_gpu("H200")
MODEL = "qwen2_5_0_5b"


def record(name: str, phase: str, seconds: float, batch: MeasuredBatch, **changes: object) -> MeasuredRun:
    fields = {
        "name": name,
        "gpu": "H200-141GB",
        "num_gpus": 1,
        "model": MODEL,
        "software": "made up",
        "batch": batch,
        "phase_seconds": {phase: seconds},
        "use": "calibration",
        "source": "test",
    }
    one = Measurement.model_validate(fields | changes)
    return MeasuredRun(record=one, config=recorded_config(one), gpu=find_gpu(one.gpu))


def update_run(name: str, micro_batch_tokens: int, efficiency: float, **changes: object) -> MeasuredRun:
    samples = 2**10
    batch = MeasuredBatch(samples=samples, prompt_tokens=100, response_tokens=156)
    seconds = train_flops(preset_model(MODEL), [256] * samples) / (989e12 * efficiency)
    settings = {"actor.ppo_max_token_len_per_gpu": micro_batch_tokens}
    return record(name, "update_actor", seconds, batch, settings=settings, **changes)


def test_fit_two_matches_hand_computed() -> None:
    assert fit_two([(1, 0, 3), (0, 2, 8), (1, 1, 7)]) == pytest.approx((3, 4))
    assert fit_two([(1, 2, 3), (2, 4, 6)]) is None


def test_fit_line_matches_hand_computed() -> None:
    assert fit_line([(0, 1), (1, 3), (2, 5)]) == pytest.approx((1, 2))
    assert fit_line([(1, 1), (1, 2)]) is None


def test_update_efficiency_matches_hand_computed() -> None:
    assert update_efficiency(update_run("a", 4096, 0.3)) == pytest.approx(0.3, rel=1e-12)


def test_fit_recovers_update_coefficients() -> None:
    runs = [update_run(str(k), k, 0.6 * k / (k + 5000)) for k in (2048, 8192, 32768)]
    found = fit(runs, H200)
    assert found.update_top_frac.value == pytest.approx(0.6, rel=1e-9)
    assert found.update_half_tokens.value == pytest.approx(5000, rel=1e-9)
    assert found.update_top_frac.sources == ("2048", "8192", "32768")


def test_fit_of_one_micro_batch_size_keeps_the_shape() -> None:
    found = fit([update_run("one", 8192, 0.3)], H200)
    assert found.update_half_tokens == Coefficients().update_half_tokens and found.update_half_tokens.assumed
    assert found.update_frac(8192) == pytest.approx(0.3, rel=1e-9)


def test_fit_recovers_rollout_coefficients() -> None:
    known = replace(Coefficients(), decode_iteration_s=Coefficient(value=2e-3), decode_token_s=Coefficient(value=1.5e-5))
    runs = []
    for samples, tensor in ((512, 1), (64, 1), (256, 2)):
        batch = MeasuredBatch(samples=samples, prompt_tokens=128, response_tokens=256)
        settings = {"rollout.tensor_parallel_size": tensor}
        draft = record("draft", "rollout", 1.0, batch, num_gpus=tensor, settings=settings)
        seconds = rollout_s(draft.model, H200, engine_load(draft), known)
        runs.append(record(f"{samples}", "rollout", seconds, batch, num_gpus=tensor, settings=settings))
    found = fit(runs, H200)
    assert found.decode_iteration_s.value == pytest.approx(2e-3, rel=1e-6)
    assert found.decode_token_s.value == pytest.approx(1.5e-5, rel=1e-6)


def test_fit_prefers_the_cards_own_measurements() -> None:
    runs = [update_run("h200", 8192, 0.3), update_run("a100", 8192, 0.5, gpu="A100-80GB")]
    assert fit(runs, find_gpu("A100-80GB")).update_top_frac.sources == ("a100",)
    assert fit(runs, H200).gpu == "H200-141GB"
    assert fit(runs, find_gpu("L4-24GB")).gpu == "H200-141GB+A100-80GB"


def test_fit_ignores_held_out_and_context() -> None:
    runs = [update_run("held", 8192, 0.9, use="held_out"), update_run("other", 8192, 0.9, use="context")]
    assert fit(runs, H200).update_top_frac == Coefficients().update_top_frac


def test_shipped_records_name_known_cards_and_models() -> None:
    runs = measured_runs(load_measurements())
    assert all(run.record.gpu in gpus() for run in runs)
    assert {row.use for row in compare(runs)} == {"calibration", "context"}  # no held-out measurement yet: see the page


def test_shipped_calibration_reproduces_its_records() -> None:
    """Two numbers from two records each: a perfect fit, which proves nothing about accuracy."""
    rows = [row for row in compare(measured_runs(load_measurements())) if row.use == "calibration"]
    assert len(rows) == 4
    assert all(abs(row.deviation_frac) < 1e-3 for row in rows)


def test_append_measurement_roundtrips(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    first, second = update_run("first", 4096, 0.3).record, update_run("second", 8192, 0.4).record
    append_measurement(path, first)
    append_measurement(path, second)
    assert read_records(path) == (first, second)
    assert load_measurements(path)[-2:] == (first, second)


def test_read_records_rejects_an_unknown_field(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('[{"name": "x", "card": "H200"}]')
    with pytest.raises(ConfigError, match=r"measurements=.*record 0\.card"):
        read_records(path)


@pytest.mark.parametrize("name,full", [("a100-40gb", "A100-40GB"), ("A100", "A100-80GB"), ("h200", "H200-141GB")])
def test_find_gpu_takes_short_names_in_any_case(name: str, full: str) -> None:
    assert find_gpu(name).name == full


def test_find_gpu_rejects_an_unknown_card() -> None:
    with pytest.raises(ConfigError, match=r"gpu=A100-40G: no such GPU \(did you mean A100-40GB\?\)"):
        find_gpu("A100-40G")
