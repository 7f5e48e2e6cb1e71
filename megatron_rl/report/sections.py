"""The parts of a report page that stand without JavaScript: key numbers, findings, tables, controls."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from megatron_rl.report.comparison import differing_keys, final_numbers, slowest_phase
from megatron_rl.report.findings import findings
from megatron_rl.report.markup import key_values, options, section, table, tiles
from megatron_rl.report.panels import PanelGroup, memory_phases
from megatron_rl.report.phases import STEP, phase_names, phase_shares, slow_steps
from megatron_rl.report.run import Run
from megatron_rl.report.series import mean_tail, metric_names, series
from megatron_rl.report.units import binary_size, plain, seconds, with_unit

_NOTES = {
    "learning": "",
    "speed": "",
    "memory": "Of the fullest rank: allocated on a GPU, resident set of the process on a CPU.",
    "sync": "The lower bound is what an engine's shard holds and its rank did not: no transfer can receive less.",
    "mismatch": "Trainer and engine hold the same weights: what differs is kernels and precision, or a fault.",
}


def key_numbers(run: Run) -> str:
    """What a run amounts to, on one line."""
    entries = [*_progress_tile(run), *_learning_tiles(run), *_time_tiles(run)]
    return f'<section class="plain" aria-label="Key numbers">{tiles(entries)}</section>\n'


def findings_section(runs: Sequence[Run]) -> str:
    """Warnings of each run; empty where there is none."""
    items = []
    for run in runs:
        owner = f"{run.label}, " if len(runs) > 1 else ""
        items += [f"<li><b>{escape(owner)}step {found.step}</b> {escape(found.text)}</li>" for found in findings(run)]
    if not items:
        return ""
    return section("findings", "Look at this first", f'<ul class="findings">{"".join(items)}</ul>')


def comparison_section(runs: Sequence[Run], without_metrics: Sequence[str]) -> str:
    """Final numbers and differing keys of several runs."""
    columns = [number for number in final_numbers() if any(number.value(run) is not None for run in runs)]
    rows = [[run.label, *(with_unit(column.value(run), column.unit) for column in columns), slowest_phase(run)] for run in runs]
    body = table(["run", *(column.title for column in columns), "most time in"], rows, "Final numbers")
    differing = differing_keys(runs)
    if differing:
        body += "<br>" + _differing_table(runs, differing)
    else:
        body += '<p class="note">The configurations do not differ.</p>'
    if without_metrics:
        body += f'<p class="notice">Without a finished step: {escape(", ".join(without_metrics))}.</p>'
    return section("comparison", "Comparison", body)


def charts_section(group: PanelGroup, controls: str = "", below: str = "") -> str:
    """Room for the charts of a group, between its controls and a table."""
    note = _NOTES[group.name]
    text = f'<p class="note">{note}</p>' if note else ""
    return section(group.name, group.title, f'{text}{controls}<div class="panels" data-charts="{group.name}"></div>{below}')


def curve_controls(runs: Sequence[Run]) -> str:
    """Smoothing slider and, for several runs, their switches."""
    longest = max((len(run.records) for run in runs), default=0)
    decay = 0.6 if longest >= 30 else 0
    switches = '<fieldset class="runs" aria-label="Runs shown"></fieldset>' if len(runs) > 1 else ""
    return (
        '<div class="toolbar"><label>Smoothing <input type="range" name="smoothing" min="0" max="0.98" step="0.02" '
        f'value="{decay}"> <output></output></label>{switches}</div>'
    )


def time_section(runs: Sequence[Run]) -> str:
    """Timeline, shares and slow steps; empty where nothing is timed."""
    timed = [run for run in runs if phase_shares(run.records)]
    if not timed:
        return ""
    labels = options([run.label for run in runs])
    select = f'<div class="toolbar"><label>Run <select name="timeline-run">{labels}</select></label></div>'
    shares = _share_table(timed[0]) if len(runs) == 1 else _shares_by_run(timed)
    slow = "".join(_slow_table(run, len(runs)) for run in timed[:6])
    lead = select if len(runs) > 1 else _blame(timed[0])
    return section("time", "Where the time goes", f'{lead}<div id="timeline"></div><div class="side">{shares}{slow}</div>')


def memory_table(runs: Sequence[Run]) -> str:
    """Peak of each phase over the whole run; empty where none was recorded."""
    phases = memory_phases(list(dict.fromkeys(name for run in runs for name in metric_names(run.records))))
    if not phases:
        return ""
    caption, rows = "Peak by phase", []
    if len(runs) == 1:
        rows = [[phase, with_unit(_peak(runs[0], name), unit)] for name, phase, unit in phases]
        return table(["phase", "peak"], rows, caption)
    rows = [[run.label, *(with_unit(_peak(run, name), unit) for name, _, unit in phases)] for run in runs]
    return table(["run", *(phase for _, phase, _ in phases)], rows, caption)


def _peak(run: Run, metric: str) -> float | None:
    return max(series(run.records, metric).finite(), default=None)


def samples_section(runs: Sequence[Run]) -> str:
    """The samples browser's controls; empty where no run recorded samples."""
    recorded = sum(len(run.samples) for run in runs)
    if not recorded:
        return ""
    run_field = (
        f'<label>Run <select name="run"><option value="">all</option>{options([run.label for run in runs])}</select></label>'
        if len(runs) > 1
        else ""
    )
    orders = "".join(f"<option>{order}</option>" for order in ("newest", "oldest", "highest reward", "lowest reward"))
    body = (
        f'<form class="toolbar" role="search" aria-label="Samples">{run_field}'
        '<label>Text <input type="search" name="text" placeholder="in prompt or response"></label>'
        '<label>Steps <input type="number" name="from" placeholder="from" aria-label="from step"></label>'
        '<label>to <input type="number" name="to" placeholder="to" aria-label="to step"></label>'
        '<label>Reward <input type="number" name="least" step="any" placeholder="least" aria-label="least reward"></label>'
        '<label>to <input type="number" name="most" step="any" placeholder="most" aria-label="highest reward"></label>'
        f'<label>Order <select name="order">{orders}</select></label></form>'
        '<p class="note"><output aria-live="polite"></output></p><ul class="samples"></ul>'
        '<button type="button" class="more" hidden>Show more</button>'
    )
    return section("samples", "Samples", body)


def config_section(runs: Sequence[Run]) -> str:
    """Resolved configuration and environment of the first run."""
    first = runs[0]
    of = f" of {first.label}" if len(runs) > 1 else ""
    config = key_values(first.config, "configuration") if first.config else '<p class="note">config.json is missing.</p>'
    environment = (
        key_values(first.environment, "environment")
        if first.environment
        else '<p class="note">environment.json is missing, so versions and hardware are unknown.</p>'
    )
    return section("config", f"Configuration{of}", config) + section("environment", f"Environment{of}", environment)


def _differing_table(runs: Sequence[Run], differing: dict[str, list[str]]) -> str:
    """Few runs stand side by side; of many, each has a row."""
    caption, labels = "Configuration keys that differ", [run.label for run in runs]
    if len(runs) <= 4:
        rows = [[key, *values] for key, values in differing.items()]
        return table(["key", *labels], rows, caption, text_columns=len(runs) + 1)
    rows = [[label, *(values[i] for values in differing.values())] for i, label in enumerate(labels)]
    return table(["run", *differing], rows, caption, text_columns=len(differing) + 1)


def _progress_tile(run: Run) -> list[tuple[str, str, str]]:
    total = f" of {run.total_steps:,}" if run.total_steps else ""
    return [("Steps", f"{run.last_step:,}{total}", run.state)]


def _learning_tiles(run: Run) -> list[tuple[str, str, str]]:
    entries = []
    rewards = series(run.records, "reward/mean").finite()
    if rewards:
        first, last = rewards[:5], mean_tail(rewards) or 0.0
        entries.append(("Reward, last 5 steps", plain(last), f"first {len(first)}: {plain(sum(first) / len(first))}"))
    held = series(run.records, "val/accuracy/mean").finite()
    if held:
        entries.append(("Held-out accuracy", plain(held[-1]), f"from {plain(held[0])}"))
    losses = series(run.records, "sft/nll_per_token").finite()
    if losses:
        entries.append(("Loss, last 5 steps", f"{plain(mean_tail(losses) or 0.0)} nats", f"from {plain(losses[0])}"))
    return entries


def _time_tiles(run: Run) -> list[tuple[str, str, str]]:
    entries = []
    steps_s = series(run.records, STEP).finite()
    if steps_s:
        entries.append(("Step time, mean", seconds(sum(steps_s) / len(steps_s)), slowest_phase(run)))
    speed = series(run.records, "perf/tokens_per_second").finite()
    if speed:
        entries.append(("Throughput, mean", f"{sum(speed) / len(speed):,.0f}", "tokens/s, prompt + response"))
    received = series(run.records, "sync/bytes_received").finite()
    ratio = series(run.records, "sync/bound_ratio").finite()
    if received:
        detail = f"{sum(ratio) / len(ratio):.2f} × the lower bound" if ratio else ""
        entries.append(("Weights per sync", binary_size(received[-1]), detail))
    mismatch = mean_tail(series(run.records, "rollout_corr/logprob_diff_mean").finite())
    if mismatch is not None:
        entries.append(("Log-prob mismatch", plain(mismatch), "nats, mean of last 5 steps"))
    return entries


def _blame(run: Run) -> str:
    first, *_ = phase_shares(run.records)
    return (
        f"<p>The largest part of a step is <b>{escape(first.phase)}</b>: {first.share_frac:.0%}, {seconds(first.mean_s)}.</p>"
    )


def _share_table(run: Run) -> str:
    rows = [
        [share.phase, seconds(share.mean_s), seconds(share.median_s), seconds(share.max_s), f"{share.share_frac:.1%}"]
        for share in phase_shares(run.records)
    ]
    html = table(["phase", "mean", "median", "longest", "share"], rows, "Seconds per step by phase")
    return _mark_phases(html, [row[0] for row in rows])


def _shares_by_run(runs: Sequence[Run]) -> str:
    phases = list(dict.fromkeys(name for run in runs for name in phase_names(run.records)))
    rows = []
    for run in runs:
        means = {share.phase: share.mean_s for share in phase_shares(run.records)}
        rows.append([run.label, *(seconds(means[phase]) if phase in means else "—" for phase in phases)])
    return _mark_phases(table(["run", *phases], rows, "Mean seconds per step by phase"), phases)


def _mark_phases(html: str, phases: Sequence[str]) -> str:
    """Tag phase headings so that the script can show the colour each has in the chart."""
    for phase in phases:
        name = escape(phase, quote=True)
        for scope in ("row", "col"):
            html = html.replace(f'<th scope="{scope}">{name}</th>', f'<th scope="{scope}" data-phase="{name}">{name}</th>', 1)
    return html


def _slow_table(run: Run, num_runs: int) -> str:
    slow = slow_steps(run.records)
    if not slow:
        return ""
    owner = f" of {run.label}" if num_runs > 1 else ""
    rows = [
        [str(item.step), item.phase, f"+{seconds(item.phase_excess_s)}", seconds(item.step_s), f"+{seconds(item.excess_s)}"]
        for item in slow
    ]
    caption = f"Slowest steps{owner} (over 1.5 times the median)"
    headers = ["step", "to blame", "over its median", "step time", "over the median"]
    return table(headers, rows, caption, text_columns=2)
