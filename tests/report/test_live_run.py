from __future__ import annotations

import json
from pathlib import Path

from megatron_rl.report.live_run import LiveRun
from tests.report.run_folders import experiment, write_jsonl, write_run


def steps(first: int, last: int) -> list[dict[str, object]]:
    return [{"step": step, "reward/mean": 0.5} for step in range(first, last + 1)]


def append(path: Path, item: dict[str, object]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(item) + "\n")


def test_refresh_sees_a_file_grow(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", steps(1, 2))
    live = LiveRun(folder)
    first = live.refresh()
    append(folder / "metrics.jsonl", {"step": 3, "reward/mean": 0.7})
    append(folder / "samples.jsonl", {"step": 3, "response": "hi"})
    second = live.refresh()
    assert first is not None and second is not None
    assert (first.run.last_step, second.run.last_step) == (2, 3)
    assert [sample.response for sample in second.run.samples] == ["hi"]


def test_refresh_waits_for_the_first_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", [])
    live = LiveRun(folder)
    assert live.refresh() is None
    append(folder / "metrics.jsonl", {"step": 1})
    snapshot = live.refresh()
    assert snapshot is not None and snapshot.run.last_step == 1


def test_refresh_follows_latest_and_keeps_the_history(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "x", lambda path: write_run(path, steps(1, 5)))
    live = LiveRun(folder)
    live.refresh()
    attempt = folder / "20260801-100009-bbbbbb"
    attempt.mkdir()
    (folder / "latest").unlink()
    (folder / "latest").symlink_to(attempt.name)
    waiting = live.refresh()
    assert waiting is not None and waiting.waiting and waiting.run.last_step == 5
    write_jsonl(attempt / "metrics.jsonl", steps(4, 4))
    resumed = live.refresh()
    assert resumed is not None and not resumed.waiting
    assert resumed.run.folder == attempt.resolve()
    assert [record["step"] for record in resumed.run.records] == [1, 2, 3, 4]
    assert resumed.run.resumed_at == [4]


def test_refresh_survives_a_restart_that_rewrites_the_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", steps(1, 5))
    live = LiveRun(folder)
    live.refresh()
    write_jsonl(folder / "new.tmp", [*steps(1, 3), {"step": 4, "reward/mean": 0.9}])
    (folder / "new.tmp").replace(folder / "metrics.jsonl")
    snapshot = live.refresh()
    assert snapshot is not None
    assert [record["reward/mean"] for record in snapshot.run.records] == [0.5, 0.5, 0.5, 0.9]
