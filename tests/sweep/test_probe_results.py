"""A probe's folder as an eight-GPU run leaves it: tables, verdict, stored measurement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_rl.cli.probe import Probe, plan_probe
from megatron_rl.cli.probe_results import show_failure, show_probe
from megatron_rl.config.run_files import write_run_config
from megatron_rl.config.world import with_world
from megatron_rl.estimator.measurements import read_records
from megatron_rl.observability.memory_summary import MemorySummary, write_memory_summary

NUM_RANKS = 16


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    keys = ["num_train_steps=21", "max_hours=1", "price_per_hour=3", "trainer.total_training_steps=180"]
    return plan_probe(["model=qwen2_5_1_5b", "algorithm=grpo", f"trainer.output_dir={tmp_path}", "data=spell_backward", *keys])


def finished_run(probe: Probe, folder: Path, *, reserved: float, rising: bool = True) -> Path:
    folder.mkdir()
    write_run_config(with_world(probe.config, NUM_RANKS, 8), folder)
    (folder / "environment.json").write_text(json.dumps({"hardware": {"device": "NVIDIA H200", "world_size": NUM_RANKS}}))
    steps = [
        {
            "step": step,
            "timing_s/step": 10.0 + 90.0 * (step == 1),
            "timing_s/gen": 6.0,
            "timing_s/update_actor": 4.0,
            "perf/total_num_tokens": 5000.0,
            "reward/mean": (step if rising else -step) / 40 + step % 2 / 20,
            "response_length/mean": 12.0,
            "response_length/max": 16.0,
            "prompt_length/mean": 40.0,
            "memory/gen_gib": 90.0,
        }
        for step in range(1, 22)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    ranks = {
        rank: {"gen": {"allocated": 90.0 - rank, "reserved": reserved, "device": reserved + 2, "cpu": 4.0}}
        for rank in range(NUM_RANKS)
    }
    write_memory_summary(folder, MemorySummary(139.8, ranks))
    return folder


def test_show_probe_of_many_gpus(probe: Probe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_probe(probe, finished_run(probe, tmp_path / "run", reserved=100.0)) == 0
    output = capsys.readouterr().out
    assert "memory_summary, peak GiB of 139.8: allocated / reserved / device" in output
    assert "90.00 / 100.00 / 102.00" in output and "75.00 / 100.00 / 102.00" in output
    assert "rank 0 " in output and "rank 15" in output and "rank 7" not in output, "only the fullest and the emptiest"
    # 180 steps of 10 s on 16 cards at 3 USD: half an hour, 8 card hours; the slow first step does not count.
    assert "whole run: 180 steps in 0.5 h on 16 ranks = 8 rank-hours, 24.00 USD" in output
    content = json.loads((tmp_path / "run" / "probe.json").read_text())
    assert [(one["question"], one["answer"]) for one in content["verdict"]] == [
        ("fits", "yes"),
        ("learns", "yes"),
        ("fast enough", "yes"),
    ]
    (record,) = read_records(tmp_path / "measurements.json")
    assert (record.gpu, record.num_gpus, record.model, record.use) == ("H200-141GB", 16, "qwen2_5_1_5b", "calibration")
    assert record.phase_seconds == {"rollout": 6.0, "update_actor": 4.0}
    assert record.peak_memory_gib == {"rollout": 90.0}
    assert (record.reserved_memory_gib, record.device_memory_gib) == (100.0, 102.0)


def test_show_probe_says_no(probe: Probe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = replace(probe, total_steps=100_000)
    assert show_probe(slow, finished_run(probe, tmp_path / "run", reserved=135.0, rising=False)) == 1
    output = capsys.readouterr().out
    assert "tight: peak 137.0 of 139.8 GiB (98%)" in output
    assert "too slow" in output


def test_show_probe_stores_nothing_for_a_shape_without_preset(
    probe: Probe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = probe.config.model.model_copy(update={"num_layers": 3})
    own = replace(probe, config=probe.config.model_copy(update={"model": model}))
    show_probe(own, finished_run(own, tmp_path / "run", reserved=100.0))
    assert "no measurement was stored: no model preset has this shape" in capsys.readouterr().out
    assert not (tmp_path / "measurements.json").exists()


def test_show_failure_recognises_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "console.log").write_text("step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    show_failure(tmp_path)
    assert "fits      no" in capsys.readouterr().out
