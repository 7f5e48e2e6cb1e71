from __future__ import annotations

import json
from pathlib import Path

from megatron_rl.report.page import render_page
from megatron_rl.report.panels import groups_for
from megatron_rl.report.payload import choose_samples, payload_json
from megatron_rl.report.run import Run, Sample, read_run
from megatron_rl.report.series import metric_names
from tests.report.run_folders import REAL, write_jsonl, write_run


def long_run(folder: Path, num_steps: int, num_metrics: int) -> Run:
    names = [f"actor/metric_{i}" for i in range(num_metrics)]
    write_run(folder, ({"step": step, **{name: step * 0.123456 for name in names}} for step in range(1, num_steps + 1)))
    text = "long answer " * 400
    write_jsonl(folder / "samples.jsonl", ({"step": s, "prompt": text, "response": text} for s in range(1, num_steps + 1)))
    return read_run(folder.name, folder)


def test_render_page_stays_small_however_long_the_runs(tmp_path: Path) -> None:
    runs = [long_run(tmp_path / name, num_steps=1_200, num_metrics=60) for name in "abc"]
    assert len(render_page(runs).encode()) < 1_500_000


def test_render_page_stays_small_for_many_runs(tmp_path: Path) -> None:
    run = long_run(tmp_path / "a", num_steps=300, num_metrics=40)
    assert len(render_page([run] * 32).encode()) < 1_500_000


def test_payload_json_cannot_leave_its_element(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", [{"step": 1, "reward/mean": 1.0}])
    hostile = "</script><script>alert(1)</script><!-- \ud800"
    (folder / "samples.jsonl").write_text(json.dumps({"step": 1, "prompt": hostile, "response": hostile}) + "\n")
    text = payload_json([read_run("x", folder)], [])
    assert "<" not in text
    assert json.loads(text)["samples"][0][4].startswith("</script><script>alert(1)")


def test_payload_json_has_each_value_once_where_steps_are_shared() -> None:
    run = read_run("demo", REAL)
    content = json.loads(payload_json([run], groups_for(metric_names(run.records))))
    metrics = content["runs"][0]["metrics"]
    assert metrics["val/accuracy/mean"] == {"s": [0, 13], "v": [0.19141, 0.84766]}
    assert len(metrics["reward/mean"]["v"]) == 13


def test_choose_samples_keeps_first_and_last_step_whole() -> None:
    samples = [Sample(step, str(i), "p" * 100, "r" * 100, 1.0, "stop") for step in range(1, 101) for i in range(4)]
    chosen = choose_samples(samples, max_chars=20_000).samples
    steps = [sample.step for sample in chosen]
    assert steps[0] == 1 and steps[-1] == 100
    assert all(steps.count(step) == 4 for step in set(steps))
    assert choose_samples(samples, max_chars=10**9).samples == samples
    assert choose_samples([], max_chars=10).samples == []
