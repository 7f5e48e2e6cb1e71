"""Profiles of chosen steps, on the CPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from megatron_rl.config.profiler import ProfilerConfig
from megatron_rl.observability.profiler import PhaseRanges, StepProfiler
from megatron_rl.observability.timers import Timers

CPU = torch.device("cpu")


def _run(folder: Path, config: ProfilerConfig, rank: int = 0) -> None:
    profiler = StepProfiler(config, rank, CPU, folder)
    timers = Timers(watches=[PhaseRanges(CPU)])
    for step in (1, 2, 3):
        with profiler.step(step), timers.step():
            with profiler.phase("gen"), timers("gen"):
                torch.ones(16).cumsum(0)
            with profiler.phase("update_actor"), timers("update_actor"):
                torch.ones(16, 16) @ torch.ones(16, 16)


def test_torch_profile_of_chosen_steps_names_phases_and_operators(tmp_path: Path) -> None:
    _run(tmp_path, ProfilerConfig(tool="torch", steps=[2, 3]))
    names = [f"step_00000{step}_rank_0.{kind}" for step in (2, 3) for kind in ("json.gz", "txt")]
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == names
    events = json.loads(gzip.decompress((tmp_path / "profile" / names[0]).read_bytes()))["traceEvents"]
    assert {"update_actor", "aten::matmul"} <= {event.get("name") for event in events}
    assert "aten::mm" in (tmp_path / "profile" / names[1]).read_text()


def test_profile_of_chosen_phases_leaves_the_others_out(tmp_path: Path) -> None:
    _run(tmp_path, ProfilerConfig(tool="torch", steps=[2], phases=["update_actor"]))
    tables = sorted((tmp_path / "profile").glob("*.txt"))
    assert [table.name for table in tables] == ["step_000002_update_actor_rank_0.txt"]
    assert "aten::mm" in tables[0].read_text() and "aten::cumsum" not in tables[0].read_text()


@pytest.mark.parametrize(
    ("config", "rank"),
    [
        (ProfilerConfig(steps=[2]), 0),
        (ProfilerConfig(tool="torch", steps=[2]), 1),
        (ProfilerConfig(tool="torch", steps=[9]), 0),
        (ProfilerConfig(tool="torch", steps=[2], phases=["ref"]), 0),
    ],
    ids=["off", "other-rank", "other-step", "other-phase"],
)
def test_nothing_is_written_where_nothing_was_asked(config: ProfilerConfig, rank: int, tmp_path: Path) -> None:
    _run(tmp_path, config, rank)
    assert list(tmp_path.iterdir()) == []


def test_nsys_rejects_a_run_on_cpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nsys watches GPUs"):
        StepProfiler(ProfilerConfig(tool="nsys"), 0, CPU, tmp_path)
