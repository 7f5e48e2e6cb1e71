"""The step benchmark from its command line, on the CPU with the tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_rl.estimator.measurements import read_records

ARGUMENTS = """--model tiny --algorithm ppo --steps 1 --prompts 2 --samples 2 --prompt-tokens 8 --response-tokens 8 --profile
--bare inside"""


@pytest.mark.slow
@pytest.mark.vllm
def test_step_benchmark_reports_every_phase_of_the_product(tmp_path: Path) -> None:
    out, stored = tmp_path / "step", tmp_path / "measurements.json"
    files = ["--out", str(out), "--store", str(stored), "--", "trainer.device=cpu"]
    command = [sys.executable, "-m", "benchmarks.step", *ARGUMENTS.split(), *files]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True, timeout=500)
    (run,) = json.loads(out.with_suffix(".json").read_text())
    phases = {phase["phase"]: phase for phase in run["phases"]}
    assert {"gen", "reward", "values", "adv", "update_critic", "update_actor", "update_weights", "other"} <= set(phases)
    assert all(0 < phases[name]["mfu"] for name in ("values", "update_critic", "update_actor"))
    assert 0 < phases["gen"]["read_frac"]
    assert 0 < run["other_share"]["median"] < 1
    assert sum(phase["seconds"]["median"] for phase in run["phases"]) == pytest.approx(run["step_s"]["median"], rel=1e-3)
    assert [profile["trace"].split("_", 2)[2] for profile in run["profiles"]][-1] == "update_actor_rank_0"
    assert run["bare"]["tokens"] and 0 < run["rollout_vs_bare"]
    (record,) = read_records(stored)
    assert (record.model, record.gpu, record.batch.samples) == ("tiny", "CPU", 4)
    assert {"rollout", "update_actor", "update_critic"} <= set(record.phase_seconds)
    assert out.with_suffix(".md").read_text().count("## tiny ppo") == 1
