"""A sweep's results as one HTML file: tables and pictures inside, no script, no network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from megatron_rl.sweep.tables import SweepResults, phase_columns, phase_rows, shown_columns, shown_row

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --rule: #d8dde3; --muted: #57606a; --model: #fff4ea; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #14171a; --rule: #363c43; --muted: #a3acb5; --model: #33241a; }
}
body {
  background: var(--paper); color: var(--ink); font: 0.95rem/1.5 system-ui, sans-serif;
  margin: 0 auto; max-width: 72rem; padding: 1.5rem;
}
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { border-top: 1px solid var(--rule); font-size: 1.1rem; margin: 1.75rem 0 0.6rem; padding-top: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--rule); padding: 0.3rem 1rem 0.3rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .words td { text-align: left; }
.words td { white-space: normal; overflow-wrap: anywhere; vertical-align: top; }
thead th { color: var(--muted); font-weight: 500; }
tr.model td { background: var(--model); font-style: italic; }
img { background: #fff; border-radius: 6px; height: auto; max-width: 100%; }
.note { color: var(--muted); font-size: 0.85rem; }
@media print { body { max-width: none; padding: 0; } .wide { overflow: visible; } }
"""


def render_sweep(sweep: SweepResults, pictures: Sequence[tuple[str, Path]], more: str = "") -> str:
    """HTML of the sweep.

    Args:
        sweep: what to show.
        pictures: PNG files with a text that describes each.
        more: file name of the report with the points' curves, in the same folder; empty = there is none.
    """
    body = [f"<h1>{escape(sweep.title)}</h1>", _introduction(sweep, more)]
    if sweep.results:
        sources = [result.source for result in sweep.results]
        body += ["<h2>Points</h2>", _table(shown_columns(sweep), [shown_row(sweep, r) for r in sweep.results], sources)]
        body += [_picture(text, path) for text, path in pictures]
        body += ["<h2>Seconds a step by phase</h2>"]
        body += [_table(phase_columns(sweep), phase_rows(sweep))]
        body += [f'<p class="note">{escape(r.name)}: {escape(r.note)}</p>' for r in sweep.results if r.note]
    if sweep.unfinished:
        rows = [[one.name, one.state, one.reason, one.run_dir] for one in sweep.unfinished]
        body += ["<h2>Points without a result</h2>", _table(["point", "state", "reason", "run folder"], rows, words=True)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        f"<title>{escape(sweep.title)}</title><style>{_STYLE}</style></head>\n<body><main>"
        + "\n".join(body)
        + "</main></body></html>\n"
    )


def _introduction(sweep: SweepResults, more: str) -> str:
    measured = sum(result.source == "measured" for result in sweep.results)
    warm_up = "first step" if sweep.warmup_steps == 1 else f"first {sweep.warmup_steps} steps"
    words = f"{measured} measured points; times leave out the {warm_up} of each run, the warm-up."
    if measured < len(sweep.results):
        words += " Rows in italics are model output: nobody has run them."
    if sweep.efficiency:
        words += (
            " Efficiency is tokens/s per rank over that of the smallest point of the same source. The phase to blame is the one"
            " whose rank-seconds per token grew most, in shares of what a token costs at the smallest point."
        )
    link = f' <a href="{escape(more, quote=True)}">Curves and samples of the points</a>' if more else ""
    return f"<p>{escape(words)}{link}</p>"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], sources: Sequence[str] = (), words: bool = False) -> str:
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in headers)
    kinds = sources or ["measured"] * len(rows)
    lines = (
        f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for kind, row in zip(kinds, rows, strict=True)
    )
    style = ' class="words"' if words else ""
    label = escape(headers[0], quote=True)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="Table by {label}">'
        f"<table{style}><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _picture(text: str, path: Path) -> str:
    data = b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(text, quote=True)}" src="data:image/png;base64,{data}"></p>'
