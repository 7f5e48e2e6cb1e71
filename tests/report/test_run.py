from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatron_rl.observability.environment import write_environment
from megatron_rl.report.run import clean_records, clean_samples, flat_json, read_run
from tests.report.run_folders import REAL, write_run


def test_read_run_matches_reference() -> None:
    run = read_run("demo", REAL)
    assert (run.last_step, run.total_steps, run.state) == (13, 13, "finished")
    assert len(run.records) == 14 and len(run.samples) == 16
    assert run.config["actor.optim.lr"] == "0.0002"
    assert run.config["data.train_files"] == "[]"


def test_read_run_needs_nothing_but_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infin')
    run = read_run("x", tmp_path)
    assert run.records == [{"step": 1.0, "loss": None}]
    assert (run.samples, run.config, run.total_steps) == ([], {}, None)


def test_read_run_shows_the_environment_it_was_recorded_in(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", [{"step": 1}])
    write_environment(folder, {"device": "NVIDIA H200", "world_size": 8})
    environment = read_run("x", folder).environment
    assert environment["hardware.device"] == '"NVIDIA H200"'
    assert environment["hardware.world_size"] == "8"
    assert environment["versions.torch"].startswith('"2.')
    assert "versions.no-such-package" not in environment


def test_clean_records_orders_steps_and_keeps_the_newest_of_each() -> None:
    items = [{"step": 2, "a": 1}, {"a": 5}, {"step": 1, "a": "text"}, {"step": 2, "a": 3}, {"step": None}]
    assert clean_records(items) == [{"step": 1.0, "a": None}, {"step": 2.0, "a": 3.0}]


def test_clean_samples_tolerates_missing_fields() -> None:
    (sample,) = clean_samples([{"step": 3, "response": "hi", "reward": None}, {"response": "no step"}])
    assert (sample.step, sample.response, sample.reward, sample.uid) == (3, "hi", None, "")


def test_flat_json_keeps_empty_sections_and_rejects_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": {"b": {"c": [1, 2]}, "d": {}}, "e": null}')
    assert flat_json(path) == {"a.b.c": "[1, 2]", "a.d": "{}", "e": "null"}
    path.write_text('{"a": ')
    assert flat_json(path) == {}


@pytest.mark.parametrize(
    ("last", "age_s", "state"), [(10, 9_999, "finished"), (4, 50, "running"), (4, 90, "running"), (4, 200, "stopped")]
)
def test_state_follows_the_last_step_and_the_age_of_the_file(tmp_path: Path, last: int, age_s: int, state: str) -> None:
    records = [{"step": step, "timing_s/step": 20.0} for step in range(1, last + 1)]
    folder = write_run(tmp_path / "x", records, trainer__total_training_steps=10)
    os.utime(folder / "metrics.jsonl", (1000, 1000))
    assert read_run("x", folder, now=lambda: 1000.0 + age_s).state == state


def test_total_steps_of_fine_tuning_come_from_its_own_section(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", [{"step": 1, "sft/loss": 2.0}], trainer__total_training_steps=None, sft__total_steps=400)
    assert read_run("x", folder).total_steps == 400
