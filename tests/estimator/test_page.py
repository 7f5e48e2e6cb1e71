"""The tables of docs/cost_estimator.md are what the code says now; renew them with ``--update-golden``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megatron_rl.estimator import page
from megatron_rl.estimator.comparison import Comparison
from megatron_rl.estimator.fitted import shipped_coefficients
from megatron_rl.estimator.measured_run import measured_runs
from megatron_rl.estimator.measurements import shipped_records

PAGE = Path(__file__).parents[2] / "docs" / "cost_estimator.md"


def test_page_matches_golden(update_golden: bool) -> None:
    text = page.renewed(PAGE.read_text(), page.tables(measured_runs(shipped_records()), shipped_coefficients()))
    if update_golden:
        PAGE.write_text(text)
    assert PAGE.read_text() == text


def row(phase: Any, use: str, quantity: Any, predicted: float) -> Comparison:
    return Comparison(name="run", phase=phase, use=use, quantity=quantity, measured=10.0, predicted=predicted)


def test_summary_counts_what_was_held_out() -> None:
    rows = [
        row("peak", "held_out", "GiB", 10.7),
        row("rollout", "held_out", "s", 8.0),
        row("update_actor", "held_out", "s", 11.0),
        row("sync", "held_out", "s", 30.0),  # milliseconds: shown, not judged
        row("rollout", "calibration", "s", 30.0),
    ]
    assert page.summary(rows) == (
        "Held out: 1 of 1 peaks of memory lie within the goal of 8%; the worst is +7.0% (run, peak).\n"
        "Held out: 1 of 2 phase times lie within the goal of 15%; the worst is -20.0% (run, rollout).\n"
    )


def test_summary_says_when_nothing_was_held_out() -> None:
    assert "not known" in page.summary([row("rollout", "calibration", "s", 10.0)])


def test_comparison_table_shows_what_was_held_out_first() -> None:
    lines = page.comparison_table([row("sync", "context", "s", 10.0), row("rollout", "held_out", "s", 8.0)]).splitlines()
    assert lines[2] == "| run | **held out** | rollout | 10 s | 8 s | -20.0% |"
    assert lines[3] == "| run | context | sync | 10 s | 10 s | +0.0% |"


def test_renewed_replaces_its_blocks_only() -> None:
    text = "a\n<!-- x -->\nold\n<!-- end -->\nb <!-- end -->\n"
    assert page.renewed(text, {"x": "new \\1\n"}) == "a\n<!-- x -->\nnew \\1\n<!-- end -->\nb <!-- end -->\n"
