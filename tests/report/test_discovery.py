from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.config.errors import ConfigError
from megatron_rl.report.discovery import find_runs, short_labels
from tests.report.run_folders import experiment, write_run

STEP = [{"step": 1, "reward/mean": 0.5}]


def finished(folder: Path) -> Path:
    return write_run(folder, STEP)


def unfinished(folder: Path) -> Path:
    write_run(folder, STEP)
    (folder / "metrics.jsonl").unlink()
    return folder


def test_find_runs_takes_a_run_folder_its_metrics_file_or_its_experiment(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "grpo", finished, finished)
    attempt = (folder / "latest").resolve()
    for path in (attempt, attempt / "metrics.jsonl", folder, folder / "latest"):
        assert find_runs([path]).folders == {"grpo": attempt}


def test_find_runs_takes_a_sweep_and_names_points_without_a_step(tmp_path: Path) -> None:
    for lr in ("1e-6", "2e-6"):
        experiment(tmp_path / f"lr_{lr}", finished)
    experiment(tmp_path / "lr_1", unfinished)
    (tmp_path / "plots").mkdir()
    found = find_runs([tmp_path])
    assert list(found.folders) == ["lr_1e-6", "lr_2e-6"]
    assert found.without_metrics == ["lr_1"]


def test_find_runs_rejects_a_sweep_without_a_step(tmp_path: Path) -> None:
    for name in ("lr_1e-4", "lr_1e-3"):
        experiment(tmp_path / name, unfinished)
    with pytest.raises(ConfigError, match="no run in it has finished a step: lr_1e-3, lr_1e-4"):
        find_runs([tmp_path])


def test_find_runs_counts_a_run_given_twice_once(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "grpo", finished)
    assert len(find_runs([folder, folder / "latest", tmp_path]).folders) == 1


def test_short_labels_tell_runs_apart(tmp_path: Path) -> None:
    paths = [finished(tmp_path / "a" / "run"), finished(tmp_path / "b" / "run"), finished(tmp_path / "b" / "other")]
    assert short_labels(paths) == ["a/run", "b/run", "other"]


def test_short_labels_name_an_older_attempt_with_its_experiment(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "grpo", finished, finished)
    old, new = sorted(path for path in folder.iterdir() if not path.is_symlink())
    assert short_labels([new, old]) == ["grpo", f"grpo/{old.name}"]


def test_find_runs_rejects_a_folder_above_experiments_and_lists_runs(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "project" / "grpo", finished)
    with pytest.raises(ConfigError) as failure:
        find_runs([tmp_path])
    assert f"{tmp_path / 'metrics.jsonl'} is missing" in str(failure.value)
    assert str((folder / "latest").resolve()) in str(failure.value)


def test_find_runs_rejects_a_run_before_its_first_step(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "grpo", finished, unfinished)
    with pytest.raises(ConfigError, match=r"latest/metrics\.jsonl is missing: the run has finished no step yet") as failure:
        find_runs([folder])
    assert "20260801-100000-aaaaaa" in str(failure.value)  # the attempt before it can be reported


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "did you mean .*grpo"),
        ("zzz", "no such folder"),
        ("notes.txt", "give a run folder"),
        ("empty", "no run folder"),
    ],
)
def test_find_runs_rejects_what_is_no_run(tmp_path: Path, name: str, message: str) -> None:
    experiment(tmp_path / "grpo", finished)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=message):
        find_runs([tmp_path / name])
