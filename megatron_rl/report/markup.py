"""HTML from plain values. Everything that comes from a run passes through ``escape`` here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", text_columns: int = 1) -> str:
    """A table in a box of its own that scrolls sideways, so that the page never does.

    Args:
        headers: plain text.
        rows: plain text cells; the first cell of a row is its heading.
        caption: plain text above the table.
        text_columns: how many columns, from the left, are words and not numbers.
    """
    kinds = [' class="text"' if i < text_columns else "" for i in range(len(headers))]
    head = "".join(f'<th scope="col"{kind}>{escape(header)}</th>' for kind, header in zip(kinds, headers, strict=True))
    body = "".join(f"<tr>{_cells(row, kinds)}</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    name = escape(caption or headers[0], quote=True)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}">'
        f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def section(name: str, title: str, body: str) -> str:
    """A section that the navigation links to."""
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{escape(title)}</h2>\n{body}</section>\n'


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Key numbers: name, value, detail."""
    cells = (
        f'<div class="tile"><dt>{escape(name)}</dt><dd><div class="value">{escape(value)}</div>'
        f'<div class="detail">{escape(detail)}</div></dd></div>'
        for name, value, detail in entries
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def key_values(values: Mapping[str, str], label: str) -> str:
    """A list of keys with a search field."""
    rows = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in values.items())
    name = escape(label, quote=True)
    return (
        f'<div class="searchable"><div class="toolbar"><label>Search <input type="search" aria-label="Search {name}" '
        'placeholder="key or value"></label><output class="note" aria-live="polite"></output></div>'
        f'<div class="keys" tabindex="0" role="region" aria-label="{name}"><dl>{rows}</dl></div></div>'
    )


def options(labels: Sequence[str]) -> str:
    """Choices of a select element, numbered from 0."""
    return "".join(f'<option value="{i}">{escape(label)}</option>' for i, label in enumerate(labels))


def _cells(row: Sequence[str], kinds: Sequence[str]) -> str:
    first, *rest = row
    cells = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds[1:], rest, strict=True))
    return f'<th scope="row">{escape(first)}</th>{cells}'
