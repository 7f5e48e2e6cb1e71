"""One frame of ``megatron-rl watch``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from megatron_rl.report.findings import Finding
from megatron_rl.report.live_run import Snapshot
from megatron_rl.report.phases import STEP, phase_shares, timed_records
from megatron_rl.report.run import Run, Sample
from megatron_rl.report.series import Series, series
from megatron_rl.report.sparkline import bar, sparkline
from megatron_rl.report.units import seconds, with_unit

CURVES = (
    ("reward", "reward/mean", ""),
    ("held-out accuracy", "val/accuracy/mean", ""),
    ("loss", "sft/nll_per_token", "nats"),
    ("entropy", "actor/entropy", "nats"),
    ("KL of the update", "actor/ppo_kl", "nats"),
    ("gradient norm", "actor/grad_norm", ""),
    ("value loss", "critic/vf_loss", ""),
    ("response length", "response_length/mean", "tokens"),
    ("engine mismatch", "rollout_corr/logprob_diff_mean", "nats"),
    ("step time", STEP, "s"),
    ("throughput", "perf/tokens_per_second", "tokens/s"),
)
"""Label, metric and unit of each line."""

_RECENT_STEPS = 20
_NUM_SAMPLES = 4
_NUM_FINDINGS = 5
_LEAST_SHARE_FRAC = 0.005


def frame(snapshot: Snapshot, width: int, failure: str = "") -> Group:
    """Progress, curves, phases, samples and warnings in ``width`` columns; ``failure`` says why the run ended."""
    run = snapshot.run
    parts: list[RenderableType] = [_progress(run, width, snapshot.waiting)]
    if failure:
        parts.append(Text(f"failed: {printable(failure)}", style="bold red"))
    parts += [Text(), _curves(run, width)]
    if timed_records(run.records):
        parts += [Text(), _phases(run, width)]
    if run.samples:
        parts += [Text(), *_samples(run.samples, width)]
    if snapshot.findings:
        parts += [Text(), *_warnings(snapshot.findings)]
    return Group(*parts)


def waiting_frame(what: str) -> Text:
    """Before the first step."""
    return Text(f"waiting for the first step in {what}", style="dim")


def printable(text: str) -> str:
    """One line without control characters: a model may sample what would command a terminal."""
    return "".join("⏎" if char == "\n" else char if char.isprintable() else "·" for char in text)


def _progress(run: Run, width: int, waiting: bool) -> Text:
    total = run.total_steps
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(run.label, style="bold")
    text.append(f"  step {run.last_step:,}" + (f" of {total:,} " if total else " "))
    if total:
        length = max(8, min(30, width - 60))
        done = bar(run.last_step / total, length)
        text.append(done, style="green").append("─" * (length - len(done)), style="dim")
    text.append(f"  {_state(run, waiting)}", style="yellow" if run.state == "stopped" or waiting else "")
    return text


def _state(run: Run, waiting: bool) -> str:
    if waiting:
        return "a new attempt has begun; waiting for its first step"
    if run.state == "finished":
        return "finished"
    if run.state == "stopped":
        return f"no new step for {seconds(run.age_s)}"
    recent = series(run.records[-_RECENT_STEPS:], STEP).finite()
    if not recent or run.total_steps is None:
        return "running"
    left_s = (run.total_steps - run.last_step) * sum(recent) / len(recent)
    return f"running, about {seconds(left_s)} left"


def _curves(run: Run, width: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True, overflow="ellipsis")
    for label, name, unit in CURVES:
        curve = series(run.records, name)
        if curve.steps:
            table.add_row(label, _spark(curve, max(10, width - 66)), _last(curve, unit), _range(curve, unit))
    return table


def _spark(curve: Series, width: int) -> Text:
    return Text(sparkline(curve.values, width), style="cyan")


def _last(curve: Series, unit: str) -> Text:
    value = curve.values[-1]
    return Text("not finite", style="bold red") if value is None else Text(with_unit(value, unit), style="bold")


def _range(curve: Series, unit: str) -> str:
    values = curve.finite()
    return f"{with_unit(min(values), '')} … {with_unit(max(values), unit)}" if values else ""


def _phases(run: Run, width: int) -> Table:
    recent = timed_records(run.records)[-_RECENT_STEPS:]
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify, table.title_style = f"mean of the last {len(recent)} steps", "left", "dim"
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for i, share in enumerate(phase_shares(recent)):
        if share.share_frac >= _LEAST_SHARE_FRAC:
            blocks = Text(bar(share.share_frac, max(10, width - 50)), style="magenta" if i == 0 else "blue")
            table.add_row(share.phase, blocks, seconds(share.mean_s), f"{share.share_frac:.0%}")
    return table


def _samples(samples: Sequence[Sample], width: int) -> list[Text]:
    lines = [Text(f"samples of step {samples[-1].step}", style="dim")]
    last = [sample for sample in samples if sample.step == samples[-1].step][:_NUM_SAMPLES]
    for sample in last:
        line = Text(no_wrap=True, overflow="ellipsis")
        reward = "   none" if sample.reward is None else f"{sample.reward:7.3f}"
        line.append(reward, style="bold").append("  ")
        prompt, response = printable(sample.prompt.strip()), printable(sample.response.strip())
        room = max(20, (width - 14) // 2)
        line.append(prompt if len(prompt) <= room else f"…{prompt[1 - room :]}", style="dim")
        line.append(" → ").append(response)
        lines.append(line)
    return lines


def _warnings(found: Sequence[Finding]) -> list[Text]:
    lines = [Text(f"warnings ({len(found)})", style="bold yellow")]
    for finding in found[-_NUM_FINDINGS:]:
        lines.append(Text(f"  step {finding.step}: ", style="yellow").append(printable(finding.text), style=""))
    return lines
