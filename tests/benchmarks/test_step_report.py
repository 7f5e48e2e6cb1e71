"""The report of benchmarked steps, as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.bare_rollout import BareRollout
from benchmarks.step_figures import Ceilings, PhaseFigures, Spread
from benchmarks.step_report import StepReport, keep_report, read_reports

REPORT = StepReport(
    name="tiny grpo",
    command="python -m benchmarks.step",
    commit="abc",
    date="2026-01-02",
    device="NVIDIA H200",
    num_devices=2,
    versions={},
    settings=("actor.use_kl_loss=true",),
    samples=64,
    prompt_tokens=512,
    response_law="1024 tokens each",
    num_steps=3,
    tokens_per_step=98_304.0,
    step_s=Spread(10.0, 9.0, 12.0),
    other_share=Spread(0.02, 0.01, 0.03),
    phases=(PhaseFigures(phase="gen", seconds=Spread(4.0, 3.0, 5.0), share_frac=0.4, tokens_per_s=16_384.0, peak_gib=1.25),),
    device_peak_gib=None,
    ceilings=Ceilings(matmul_flops_per_s=7.9e14, copy_bytes_per_s=4.3e12),
    bare=BareRollout(start_s=50.0, seconds=(4.0,), tokens=(65_536,)),
    rollout_vs_bare=0.985,
)


def test_markdown_matches_hand_computed() -> None:
    lines = REPORT.markdown().splitlines()
    assert "| gen | 4 (3 - 5) | 40.0% | 16,384 |  |  |  | 1.25 |" in lines
    assert "vLLM alone, same requests: 16,384 tokens/s; the rollout reaches 98.5% of it." in lines
    assert "2.0% (1.0% - 3.0%) neither generates nor scores nor trains" in REPORT.markdown()


def test_later_report_of_a_name_replaces_the_earlier(tmp_path: Path) -> None:
    out = tmp_path / "new" / "step"
    for report in (REPORT, replace(REPORT, name="tiny ppo"), replace(REPORT, commit="def")):
        keep_report(out, report)
    assert read_reports(out.with_suffix(".json")) == (replace(REPORT, name="tiny ppo"), replace(REPORT, commit="def"))
    text = out.with_suffix(".md").read_text()
    assert (
        text
        == f"# RL step by phase\n\n{replace(REPORT, name='tiny ppo').markdown()}\n{replace(REPORT, commit='def').markdown()}"
    )
