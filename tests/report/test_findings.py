from __future__ import annotations

from pathlib import Path

from megatron_rl.report.findings import findings
from megatron_rl.report.run import read_run
from tests.report.run_folders import REAL, write_run


def test_findings_are_empty_for_a_healthy_run() -> None:
    assert findings(read_run("demo", REAL)) == []


def test_findings_replay_rules_counters_and_gaps(tmp_path: Path) -> None:
    records = [
        {
            "step": step,
            "response_length/clip_ratio": 0.95,
            "rollout_corr/logprob_diff_mean": 0.2 if step == 2 else 0.0,
            "reward/timeouts": 3.0 if step >= 4 else 0.0,
            "actor/grad_norm": None if step == 5 else 1.0,
        }
        for step in range(1, 6)
    ]
    folder = write_run(tmp_path / "x", records, rollout__mismatch_warn_threshold=0.05)
    found = findings(read_run("x", folder))
    assert [finding.step for finding in found] == [2, 3, 4, 5]
    for finding, start in zip(
        found,
        (
            "rollout_corr/logprob_diff_mean is 0.2",
            "response_length/clip_ratio is 0.95",
            "reward/timeouts: 6 in 2 steps",
            "actor/grad_norm was not a finite number in 1 step",
        ),
        strict=True,
    ):
        assert finding.text.startswith(start)
