"""Tables, pictures and the page of a sweep with a failed and a modelled point."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from megatron_rl.sweep.efficiency import efficiencies
from megatron_rl.sweep.outputs import write_outputs
from megatron_rl.sweep.page import render_sweep
from megatron_rl.sweep.point_result import PointResult, UnfinishedPoint
from megatron_rl.sweep.tables import SweepResults, csv_text, phase_rows, shown_columns, shown_row

SMALL = PointResult(
    name="gpus_1",
    source="measured",
    settings={"gpus": "1"},
    num_ranks=1,
    num_steps=9,
    step_s=2.0,
    step_std_s=0.25,
    tokens_per_step=1000.0,
    tokens_per_s=500.0,
    phase_s={"gen": 1.5, "update_actor": 0.495, "other": 0.005},
    phase_std_s={"gen": 0.2, "update_actor": None, "other": 0.001},
    memory_gib={"gen": 3.0, "update_actor": 5.0},
    peak_gib=5.0,
    gpu_hours=0.5,
    price_per_hour=4.0,
)
LARGE = replace(SMALL, name="gpus_2", settings={"gpus": "2"}, num_ranks=2, gpu_hours=1.0)
MODEL = replace(LARGE, source="model", num_steps=0, step_std_s=None, gpu_hours=None, note="model output for 2 x H200-141GB")
FAILED = UnfinishedPoint("gpus_4", "failed", 'rank 3 (exit code 1): ValueError: <b>"no"</b>', "/runs/gpus_4")


def sweep(*results: PointResult, scaling: bool = True) -> SweepResults:
    return SweepResults(
        title="scaling <strong>",
        results=results,
        efficiency=efficiencies(results) if scaling else {},
        unfinished=[FAILED],
        warmup_steps=1,
    )


FULL = sweep(SMALL, LARGE, MODEL)


def test_csv_text_matches_hand_computed() -> None:
    small, large, model = csv.DictReader(io.StringIO(csv_text(FULL)))
    assert (small["efficiency_frac"], small["phase_to_blame"]) == ("1.0", "")
    assert (large["efficiency_frac"], large["phase_to_blame"], large["blamed_share_now"]) == ("0.5", "gen", "1.5")
    assert (large["steps_per_s"], large["tokens_per_s_per_rank"], large["gen_frac"]) == ("0.5", "250.0", "0.75")
    assert (large["cost_usd"], large["peak_memory_gib"]) == ("4.0", "5.0")
    # 2 GPUs at 4 USD an hour make 500 tokens a second: 8 / 3600 / 500 * 10^6.
    assert float(large["usd_per_million_tokens"]) == pytest.approx(4.44444)
    assert (model["source"], model["measured_steps"], model["cost_usd"], model["step_s_std"]) == ("model", "0", "", "")
    assert model["efficiency_frac"] == "1.0", "the model's smallest point, not the measured one, is its base"


def test_tables_leave_out_what_was_not_asked() -> None:
    grid = sweep(replace(SMALL, price_per_hour=None), scaling=False)
    assert "efficiency_frac" not in csv_text(grid)
    assert "USD" not in shown_columns(grid) and "efficiency" not in shown_columns(grid)
    assert len(shown_row(grid, grid.results[0])) == len(shown_columns(grid))
    assert len(shown_row(FULL, LARGE)) == len(shown_columns(FULL))


def test_phase_rows_show_mean_spread_and_share() -> None:
    assert phase_rows(sweep(SMALL)) == [["gen", "1.5 ± 0.2 s, 75%"], ["update_actor", "0.495 s, 25%"]]


def test_write_outputs_leaves_every_file(tmp_path: Path) -> None:
    paths = write_outputs(tmp_path, FULL, "report.html")
    assert {path.name for path in paths} == {path.name for path in tmp_path.iterdir()}
    assert {path.name for path in paths} == {"results.csv", "results.json", "results.html", "efficiency.png", "phases.png"}
    assert (tmp_path / "efficiency.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["unfinished"] == [{"point": "gpus_4", "state": "failed", "reason": FAILED.reason, "run_dir": "/runs/gpus_4"}]
    assert content["points"][1]["memory_gib_by_phase"] == {"gen": 3.0, "update_actor": 5.0}


def test_write_outputs_of_a_sweep_without_results_names_the_failed_points(tmp_path: Path) -> None:
    write_outputs(tmp_path, sweep())
    assert {path.name for path in tmp_path.iterdir()} == {"results.csv", "results.json", "results.html"}
    assert "rank 3 (exit code 1)" in (tmp_path / "results.html").read_text()


def test_render_sweep_is_self_contained_and_escapes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    page = render_sweep(FULL, [("a picture", tmp_path / "a.png")], "report.html")
    assert "scaling &lt;strong&gt;" in page and "&lt;b&gt;&quot;no&quot;&lt;/b&gt;" in page
    assert re.findall(r'(?:src|href)="(?!data:)([^"]*)"', page) == ["report.html"]
    assert "<script" not in page
    assert page.count('<tr class="model">') == 1
    assert "Rows in italics are model output" in page
