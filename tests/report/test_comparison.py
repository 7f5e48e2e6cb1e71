from __future__ import annotations

from pathlib import Path

import pytest

from megatron_rl.report.comparison import differing_keys, final_numbers
from megatron_rl.report.run import read_run
from tests.report.run_folders import write_run


def test_differing_keys_leave_out_equal_ones_and_names(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "a", [{"step": 1}], trainer__experiment_name="a", actor__lr=1e-6, rollout__n=8),
        write_run(tmp_path / "b", [{"step": 1}], trainer__experiment_name="b", actor__lr=2e-6, rollout__n=8, critic__on=True),
    ]
    runs = [read_run(folder.name, folder) for folder in folders]
    assert differing_keys(runs) == {"actor.lr": ["1e-06", "2e-06"], "critic.on": ["—", "true"]}


def test_final_numbers_match_hand_computed(tmp_path: Path) -> None:
    records = [
        {
            "step": step,
            "reward/mean": float(step),
            "timing_s/step": 2.0,
            "memory/gen_gib": float(step),
            "memory/update_mib": 512,
        }
        for step in range(1, 11)
    ]
    records[4]["reward/mean"] = None
    run = read_run("x", write_run(tmp_path / "x", records))
    values = {number.title: number.value(run) for number in final_numbers()}
    assert values["reward, last 5 steps"] == pytest.approx(8.0)
    assert values["training time"] == 20.0
    assert values["peak memory"] == 10.0
    assert values["held-out accuracy"] is None
