"""Fits recover what made the data; stored records read and write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_rl.config.errors import ConfigError
from megatron_rl.estimator import calibration
from megatron_rl.estimator.calibration import fit, fit_all, main, taken_in
from megatron_rl.estimator.catalogue import GIB, find_gpu, gpus
from megatron_rl.estimator.coefficients import COEFFICIENT_NAMES, Coefficient, Coefficients
from megatron_rl.estimator.comparison import compare
from megatron_rl.estimator.fitted import fitted_coefficients, shipped_coefficients, write_coefficients
from megatron_rl.estimator.measured_run import MeasuredRun, measured_runs
from megatron_rl.estimator.measurements import (
    MEASUREMENTS_FILE,
    MeasuredBatch,
    Measurement,
    append_measurement,
    own_records,
    read_records,
    shipped_records,
    write_records,
)
from megatron_rl.estimator.parameters import total_parameters

H200 = find_gpu("H200")
TRUTH = replace(
    Coefficients(),
    matmul_frac=Coefficient(value=0.7),
    attention_frac=Coefficient(value=0.4),
    stream_frac=Coefficient(value=0.5),
    decode_matmul_frac=Coefficient(value=0.4),
    decode_memory_frac=Coefficient(value=0.8),
    iteration_s=Coefficient(value=4e-3),
    token_s=Coefficient(value=5e-6),
    sample_s=Coefficient(value=1e-3),
)
SHAPES = ("qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2_7b")


def measured_run(
    model: str, *, prompts: int = 64, response: float = 700.0, truth: Coefficients = TRUTH, **changes: object
) -> MeasuredRun:
    """A run of eight samples a prompt on one H200 that took what ``truth`` says, to the digit."""
    fields: dict[str, object] = {
        "name": f"{model}_{prompts}_{response:.0f}",
        "gpu": "H200-141GB",
        "num_gpus": 1,
        "model": model,
        "software": "made up",
        "settings": {
            "rollout.max_num_seqs": 512,
            "rollout.kv_cache_gib": 60.0,
            "data.train_batch_size": prompts,
            "rollout.n": 8,
            "actor.reuse_logprobs": False,
        },
        "batch": MeasuredBatch(
            samples=8 * prompts,
            samples_per_prompt=8,
            prompt_tokens=512.0,
            response_tokens=response,
            longest_response_tokens=1024.0,
            squared_tokens=1.1 * (512 + response) ** 2,
        ),
        "phase_seconds": dict.fromkeys(("rollout", "score_actor", "update_actor", "sync", "other"), 1.0),
        "use": "calibration",
        "source": "test",
    }
    (draft,) = measured_runs([Measurement.model_validate(fields | changes)])
    true_s = {phase: sum(cost.seconds(draft.gpu, truth) for cost in costs) for phase, costs in draft.costs(truth)}
    return replace(draft, record=draft.record.model_copy(update={"phase_seconds": true_s}))


@pytest.fixture(scope="module")
def runs() -> list[MeasuredRun]:
    return [measured_run(model, prompts=n, response=r) for model in SHAPES for n, r in ((64, 700.0), (16, 300.0))]


def test_fit_recovers_the_truth_of_unlike_runs(runs: list[MeasuredRun]) -> None:
    """To within its own error bars: records of one card never tell all coefficients apart."""
    found = fit(runs, H200)
    for name in ("matmul_frac", "stream_frac", "iteration_s", "token_s", "sample_s"):
        one, true = found.get(name), TRUTH.get(name)
        assert abs(one.value - true.value) <= 2 * one.spread and not one.assumed, name


def test_fit_predicts_what_it_has_not_seen(runs: list[MeasuredRun]) -> None:
    seen = [run for run in runs if run.config.model.name != "qwen2_5_1_5b"]
    unseen = [replace(run, record=run.record.model_copy(update={"use": "held_out"})) for run in runs if run not in seen]
    rows = compare([*seen, *unseen], {"H200-141GB": fit([*seen, *unseen], H200)})
    held = [row for row in rows if row.use == "held_out"]
    assert len(held) == 2 * 5
    assert all(abs(row.deviation_frac) < (0.5 if row.phase in ("sync", "other") else 0.03) for row in held)


def test_fit_tells_a_slow_host_from_a_slow_card(runs: list[MeasuredRun]) -> None:
    """Passes of a small model in small micro-batches wait for the host; the card's coefficients stay what they were."""
    slow = replace(TRUTH, layer_pass_s=Coefficient(value=1e-3))
    small = measured_run("qwen2_5_0_5b", truth=slow, name="small", settings={"actor.ppo_max_token_len_per_gpu": 2048})
    found = fit([*runs, small], H200)
    assert found.layer_pass_s.value == pytest.approx(1e-3, rel=0.1) and found.layer_pass_s.sources == ("small",)
    assert found.matmul_frac.value == pytest.approx(fit(runs, H200).matmul_frac.value, rel=0.02)


def test_fit_narrows_what_was_believed(runs: list[MeasuredRun]) -> None:
    found, believed = fit(runs, H200), Coefficients()
    for name in ("matmul_frac", "stream_frac", "iteration_s", "token_s"):
        assert found.get(name).spread < believed.get(name).spread


def test_fit_starts_from_the_belief_it_is_given(runs: list[MeasuredRun]) -> None:
    certain = replace(Coefficients(), token_s=Coefficient(value=1e-5, spread=1e-12))
    assert fit(runs, H200, certain).token_s.value == pytest.approx(1e-5, rel=1e-6)


def test_fit_of_another_cards_records_changes_nothing(runs: list[MeasuredRun]) -> None:
    assert fit(runs, find_gpu("A100-80GB")) == Coefficients()


def test_fit_ignores_held_out_and_context(runs: list[MeasuredRun]) -> None:
    for use in ("held_out", "context"):
        others = [replace(run, record=run.record.model_copy(update={"use": use})) for run in runs]
        assert fit(others, H200) == Coefficients()


def test_fit_reads_what_lies_outside_of_the_allocator() -> None:
    memory = {"peak_memory_gib": {"update_actor": 90.0}, "reserved_memory_gib": 97.0, "device_memory_gib": 98.5}
    found = fit([measured_run("qwen2_5_0_5b", **memory)], H200)
    assert found.context_bytes.value == 1.5 * GIB
    assert found.headroom_frac.assumed  # what an allocator holds is not what it needs


def test_a_sleeping_engine_is_in_torchs_figures_only() -> None:
    memory = {"peak_memory_gib": {"update_actor": 90.0}, "reserved_memory_gib": 97.0, "device_memory_gib": 40.0}
    asleep = measured_run("qwen2_5_0_5b", settings={"rollout.free_cache_engine": True, "rollout.kv_cache_gib": 60.0}, **memory)
    awake = measured_run("qwen2_5_0_5b", settings={"rollout.free_cache_engine": False, "rollout.kv_cache_gib": 60.0})
    known = Coefficients()
    assert asleep.peak_bytes(known) == awake.peak_bytes(known)
    assert asleep.card_bytes(known) < awake.card_bytes(known)
    assert fit([asleep], H200).context_bytes == known.context_bytes


def test_fit_takes_rates_of_single_operations() -> None:
    rates = {"memory_bytes_per_s": 4.2e12, "link_bytes_per_s": 360e9, "engine_start_bytes": 1e8}
    found = fit([measured_run("qwen2_5_0_5b", yardsticks=rates)], H200)
    assert found.link_frac.value == 0.8 and found.engine_bytes.value == 1e8
    assert found.memory_frac.value == pytest.approx(4.2 / 4.8, rel=0.02)


def test_peaks_are_those_of_torchs_allocator(runs: list[MeasuredRun]) -> None:
    run = runs[0]
    peaks = run.peak_bytes(Coefficients())
    assert peaks == run.peak_bytes(replace(Coefficients(), context_bytes=Coefficient(value=1e12)))
    # Weights, gradients and optimizer of the actor, and the cache; the engine reads the actor's weights.
    assert peaks["update actor"] > 18 * total_parameters(run.config.model) + 60 * GIB


def test_shipped_records_name_known_cards_and_models() -> None:
    assert all(run.record.gpu in gpus() for run in measured_runs(shipped_records()))


def test_shipped_coefficients_are_those_of_the_shipped_records() -> None:
    """Renew with ``python -m megatron_rl.estimator.calibration``."""
    fitted, shipped = fit_all(measured_runs(shipped_records())), shipped_coefficients()
    assert fitted.keys() == shipped.keys()
    for card, known in fitted.items():
        for name in COEFFICIENT_NAMES:
            assert shipped[card].get(name).value == pytest.approx(known.get(name).value, rel=1e-6), (card, name)


def test_fitted_coefficients_of_an_unmeasured_card_are_less_certain() -> None:
    own, carried = fitted_coefficients(H200), fitted_coefficients(find_gpu("L4-24GB"))
    assert carried.gpu == own.gpu == "H200-141GB"
    assert carried.memory_frac.value == own.memory_frac.value
    assert carried.memory_frac.spread >= 0.2 * own.memory_frac.value


def test_write_coefficients_keeps_what_was_measured_only(tmp_path: Path) -> None:
    path = tmp_path / "coefficients.json"
    measured = Coefficient(value=0.5, spread=0.1, sources=("a", "b"))
    write_coefficients(path, {"H200-141GB": replace(Coefficients(), matmul_frac=measured)})
    assert json.loads(path.read_text()) == {"H200-141GB": {"matmul_frac": {"value": 0.5, "spread": 0.1, "sources": ["a", "b"]}}}


def test_taken_in_replaces_records_of_the_same_name() -> None:
    old, new = measured_run("qwen2_5_0_5b").record, measured_run("qwen2_7b").record
    renewed = old.model_copy(update={"source": "again"})
    found = taken_in([old], [new, renewed], held_out=["7b"])
    assert [(record.name, record.source, record.use) for record in found] == [
        (old.name, "again", "calibration"),
        (new.name, "test", "held_out"),
    ]


def test_main_prints_held_out_rows_and_writes_nothing_when_dry(
    tmp_path: Path, runs: list[MeasuredRun], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Measured runs of the same card would pull the fit away from the made-up ones.
    stored = [record for record in shipped_records() if not record.name.startswith("step_")]
    write_records(tmp_path / MEASUREMENTS_FILE, stored)
    monkeypatch.setattr(calibration, "_DATA", tmp_path)
    path = tmp_path / "own.json"
    write_records(path, [run.record for run in runs])
    before = (tmp_path / MEASUREMENTS_FILE).read_bytes()
    assert main([str(path), "--held-out", "1_5b_64", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "| qwen2_5_1_5b_64_700 | **held out** | rollout |" in output
    assert "Held out: 3 of 3 phase times lie within the goal of 15%" in output
    assert (tmp_path / MEASUREMENTS_FILE).read_bytes() == before


def test_append_measurement_roundtrips(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    first, second = (measured_run("qwen2_5_0_5b", name=name).record for name in ("first", "second"))
    append_measurement(path, first)
    append_measurement(path, second)
    assert read_records(path) == (first, second)
    assert own_records(path) == (first, second) and own_records(None) == ()


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
