"""The JSONL file."""

from __future__ import annotations

import json

from megatron_rl.observability.sinks import JsonlSink, read_metrics


def write(path, *steps, value=1.0):
    sink = JsonlSink(path)
    for step in steps:
        sink.write(step, {"reward/mean": value})
    sink.close()


def test_jsonl_is_complete_before_close(tmp_path):
    sink = JsonlSink(tmp_path / "run" / "metrics.jsonl")
    sink.write(1, {"reward/mean": 0.5})
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == [{"step": 1, "reward/mean": 0.5}]


def test_resumed_jsonl_continues_the_steps(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 2, 3)
    write(path, 4, 5)
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3, 4, 5]
    assert not (tmp_path / "metrics.superseded.jsonl").exists()


def test_repeated_steps_supersede_the_old_ones(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 2, 3, 4, value=1.0)
    write(path, 3, 4, 5, value=2.0)
    assert [(r["step"], r["reward/mean"]) for r in read_metrics(path)] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert [r["step"] for r in read_metrics(tmp_path / "metrics.superseded.jsonl")] == [3, 4]


def test_line_cut_short_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 2)
    path.write_text(path.read_text() + '{"step": 3, "reward/m')
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
    write(path, 3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_values_that_are_not_finite_become_null(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(1, {"a": float("nan"), "b": float("inf"), "c": 1.0})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "a": null, "b": null, "c": 1.0}\n'
