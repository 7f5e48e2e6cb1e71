"""The report as one HTML file: no network, no other file, no foreign script."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template

from megatron_rl import __version__
from megatron_rl.report.panels import PanelGroup, groups_for
from megatron_rl.report.payload import MAX_SAMPLE_CHARS, payload_json
from megatron_rl.report.run import Run
from megatron_rl.report.sections import (
    charts_section,
    comparison_section,
    config_section,
    curve_controls,
    findings_section,
    key_numbers,
    memory_table,
    samples_section,
    time_section,
)
from megatron_rl.report.series import metric_names
from megatron_rl.report.units import seconds

_SCRIPTS = ("numbers.js", "elements.js", "line_chart.js", "phase_chart.js", "samples.js", "page.js")


def render_page(runs: Sequence[Run], without_metrics: Sequence[str] = (), now: datetime | None = None) -> str:
    """HTML of the report on ``runs``; ``without_metrics`` are sweep points that could not be read."""
    assert runs, "a report needs a run"
    groups = groups_for(list(dict.fromkeys(name for run in runs for name in metric_names(run.records))), len(runs))
    heading = runs[0].label if len(runs) == 1 else f"{len(runs)} runs compared"
    sections = _sections(runs, groups, without_metrics)
    return Template(_asset("page.html")).substitute(
        title=escape(f"{heading} · megatron-rl report"),
        heading=escape(heading),
        status=escape(_status(runs)),
        style=_asset("page.css"),
        navigation=_navigation(sections),
        sections="".join(sections),
        footer=escape(f"megatron-rl {__version__}, {(now or datetime.now()):%Y-%m-%d %H:%M}. {_limits(runs)}"),
        payload=payload_json(runs, groups),
        script="\n".join(_asset(name) for name in _SCRIPTS),
    )


def _sections(runs: Sequence[Run], groups: Sequence[PanelGroup], without_metrics: Sequence[str]) -> list[str]:
    by_name = {group.name: group for group in groups}
    controls = curve_controls(runs)
    sections = [key_numbers(runs[0])] if len(runs) == 1 else []
    sections.append(findings_section(runs))
    if len(runs) > 1 or without_metrics:
        sections.append(comparison_section(runs, without_metrics))
    if "learning" in by_name:
        sections.append(charts_section(by_name["learning"], controls))
    else:
        controls_only = f'<section class="plain" aria-label="Curves">{controls}</section>\n'
        sections.append(controls_only)
    sections.append(time_section(runs))
    tables = {"memory": memory_table(runs)}
    sections += [
        charts_section(by_name[name], below=tables.get(name, ""))
        for name in ("speed", "memory", "sync", "mismatch")
        if name in by_name
    ]
    sections.append('<section class="plain" id="explore" aria-label="Any metric"></section>\n')
    return [part for part in [*sections, samples_section(runs), config_section(runs)] if part]


_TITLES = {
    "findings": "Findings",
    "comparison": "Comparison",
    "learning": "Learning",
    "time": "Time",
    "speed": "Speed",
    "memory": "Memory",
    "sync": "Weight sync",
    "mismatch": "Trainer against engine",
    "samples": "Samples",
    "config": "Configuration",
    "environment": "Environment",
}


def _navigation(sections: Sequence[str]) -> str:
    text = "".join(sections)
    return "".join(f'<a href="#{name}">{title}</a>' for name, title in _TITLES.items() if f'<section id="{name}"' in text)


def _status(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        counts = {state: sum(run.state == state for run in runs) for state in ("finished", "running", "stopped")}
        return ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    run = runs[0]
    parts = [_state_text(run)]
    parts += [f"resumed before step {step}" for step in run.resumed_at]
    if run.recomputed_steps:
        first, last = run.recomputed_steps[0], run.recomputed_steps[-1]
        parts.append(f"steps {first} to {last} were computed again after a restart")
    return ". ".join(parts) + "."


def _state_text(run: Run) -> str:
    if run.state == "running":
        return f"Running, last step written {seconds(max(1, round(run.age_s)))} ago"
    if run.state == "finished":
        return f"Finished at step {run.last_step:,}"
    return f"No new step for {seconds(round(run.age_s))}; last step {run.last_step:,}"


def _limits(runs: Sequence[Run]) -> str:
    folders = ", ".join(run.folder.name for run in runs[:4]) + (" ..." if len(runs) > 4 else "")
    return (
        f"Made from {folders}. Long curves keep their first, last, lowest and highest points; samples beyond "
        f"{MAX_SAMPLE_CHARS // 1000} thousand characters are left out; the run folders hold everything."
    )


def _asset(name: str) -> str:
    return (files("megatron_rl.report") / "assets" / name).read_text(encoding="utf-8")
