"""Every impossible point is reported before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launchers.sweep_plan import Host, SweepPlan, plan_sweep
from launchers.sweep_spec import spec_of
from megatron_rl.cli.compose import compose_run
from megatron_rl.config.errors import ConfigError

LAPTOP = Host(num_gpus=0, num_processors=2)


def plan(folder: Path, *overrides: str, host: Host = LAPTOP, **content: Any) -> SweepPlan:
    shared = ["experiment=tiny_cpu", f"trainer.output_dir={folder}", *overrides]
    return plan_sweep(spec_of({"kind": "scaling", "overrides": shared, **content}), compose_run, host)


def problems(folder: Path, *overrides: str, **content: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(folder, *overrides, **content)
    assert list(folder.iterdir()) == []
    return list(caught.value.problems)


def test_plan_sweep_fills_the_points(tmp_path: Path) -> None:
    ready = plan(tmp_path, gpus=[2, 4], mode="weak")
    assert ready.folder == tmp_path / "scaling_weak"
    assert [(p.point.name, p.num_ranks, p.config.data.train_batch_size) for p in ready.points] == [
        ("gpus_2", 2, 32),
        ("gpus_4", 4, 64),
    ]
    assert {p.config.trainer.experiment_name for p in ready.points} == {"gpus_2", "gpus_4"}


def test_plan_sweep_rejects_all_impossible_points_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, gpus=[1, 2, 3])
    assert [problem.partition(":")[0] for problem in found] == ["gpus_1", "gpus_3"]
    assert all("actor.parallel.tensor=2" in problem and "does not divide the world" in problem for problem in found)


def test_plan_sweep_rejects_what_all_points_share_once(tmp_path: Path) -> None:
    (first, *rest) = problems(tmp_path, "actor.ppo_mini_batch_size=5", gpus=[2, 4])
    assert first.startswith("every point: actor.ppo_mini_batch_size=5") and rest == []


def test_plan_sweep_rejects_a_misspelt_key_of_a_grid(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, kind="grid", parameters={"rolout.n": ["4", "8"]})
    assert only == "every point: rolout.n: no such key; did you mean rollout.n?"


def test_plan_sweep_rejects_a_value_of_one_point(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, kind="grid", parameters={"rollout.n": ["4", "four"]})
    assert only.startswith("n_four: rollout.n: got")


def test_plan_sweep_rejects_one_run_under_two_names(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, kind="grid", parameters={"actor.optim.lr": ["1e-6", "1e-5", "1.0e-6"]})
    assert only == "lr_1.0e-6: the same run as lr_1e-6; every point needs a value of its own"


def test_plan_sweep_rejects_runs_of_warmup_alone(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, "trainer.total_training_steps=2", gpus=[2], warmup_steps=2)
    assert "no step is left to measure after warmup_steps=2" in only


def test_plan_sweep_rejects_more_gpus_than_this_host_has(tmp_path: Path) -> None:
    (only,) = problems(tmp_path, "trainer.device=auto", gpus=[2, 4], host=Host(num_gpus=2, num_processors=8))
    assert only.startswith("gpus_4: 4 GPUs: this machine shows 2; use launcher=slurm, or estimate=true")


def test_plan_sweep_leaves_larger_points_to_the_model(tmp_path: Path) -> None:
    ready = plan(tmp_path, gpus=[2, 4], estimate=True, gpu="H200")
    assert [(p.point.name, p.runs) for p in ready.points] == [("gpus_2", True), ("gpus_4", False)]
