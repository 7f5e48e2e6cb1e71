from __future__ import annotations

from pathlib import Path

from megatron_rl.report.run import read_run
from tests.report.run_folders import experiment, write_jsonl, write_run


def steps(first: int, last: int, reward: float) -> list[dict[str, object]]:
    return [{"step": step, "reward/mean": reward} for step in range(first, last + 1)]


def latest(folder: Path) -> Path:
    return (folder / "latest").resolve()


def test_read_run_joins_attempts_at_the_step_they_resumed_from(tmp_path: Path) -> None:
    folder = experiment(
        tmp_path / "x",
        lambda path: write_run(path, steps(1, 7, 0.1)),
        lambda path: write_run(path, steps(5, 6, 0.2)),
        lambda path: write_run(path, steps(7, 9, 0.3)),
    )
    write_jsonl(latest(folder).parent / "20260801-100000-aaaaaa" / "samples.jsonl", [{"step": 4}, {"step": 5}])
    run = read_run("x", latest(folder))
    assert [record["reward/mean"] for record in run.records] == [0.1] * 4 + [0.2] * 2 + [0.3] * 3
    assert [record["step"] for record in run.records] == list(range(1, 10))
    assert run.resumed_at == [5, 7]
    assert [sample.step for sample in run.samples] == [4]


def test_read_run_does_not_join_a_run_that_began_anew(tmp_path: Path) -> None:
    folder = experiment(
        tmp_path / "x", lambda path: write_run(path, steps(1, 7, 0.1)), lambda path: write_run(path, steps(1, 2, 0.2))
    )
    assert len(read_run("x", latest(folder)).records) == 2


def test_read_run_does_not_join_where_resuming_is_off(tmp_path: Path) -> None:
    folder = experiment(
        tmp_path / "x",
        lambda path: write_run(path, steps(1, 7, 0.1)),
        lambda path: write_run(path, steps(3, 4, 0.2), trainer__resume_mode="disable"),
    )
    assert read_run("x", latest(folder)).resumed_at == []


def test_read_run_passes_over_attempts_that_did_not_reach_the_step(tmp_path: Path) -> None:
    folder = experiment(
        tmp_path / "x",
        lambda path: write_run(path, steps(1, 7, 0.1)),
        lambda path: write_run(path, steps(1, 2, 0.2)),
        lambda path: write_run(path, steps(6, 7, 0.3)),
    )
    assert [record["reward/mean"] for record in read_run("x", latest(folder)).records] == [0.1] * 5 + [0.3] * 2


def test_read_run_tells_which_steps_were_computed_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", steps(1, 5, 0.1))
    write_jsonl(folder / "metrics.superseded.jsonl", steps(4, 5, 0.0))
    assert read_run("x", folder).recomputed_steps == [4, 5]
