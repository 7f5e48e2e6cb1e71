"""Run folders to read: a real one, cut short, and variants of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

REAL = Path(__file__).parent / "data" / "grpo_run"
"""Steps 0 to 12 of a demo run and its last one as step 13; some metrics and most samples left out."""

Change = Callable[[dict[str, object]], dict[str, object]]


def real_records() -> list[dict[str, object]]:
    return [json.loads(line) for line in (REAL / "metrics.jsonl").read_text().splitlines()]


def write_jsonl(path: Path, items: Iterable[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")


def write_run(folder: Path, records: Iterable[Mapping[str, object]], **config: object) -> Path:
    """A run folder with these records and, given any, a configuration of dotted keys (``__`` for the dot)."""
    write_jsonl(folder / "metrics.jsonl", records)
    nested: dict[str, dict[str, object]] = {}
    for key, value in config.items():
        section, _, name = key.partition("__")
        nested.setdefault(section, {})[name] = value
    (folder / "config.json").write_text(json.dumps(nested))
    return folder


def copy_real(folder: Path, change: Change = lambda record: record, **config: object) -> Path:
    """The real run with changed records and configuration values (``section__key=...``)."""
    shutil.copytree(REAL, folder)
    write_jsonl(folder / "metrics.jsonl", [change(record) for record in real_records()])
    content = json.loads((folder / "config.json").read_text())
    for key, value in config.items():
        section, _, name = key.partition("__")
        content[section][name] = value
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def experiment(folder: Path, *attempts: Callable[[Path], Path]) -> Path:
    """An experiment whose attempts are made one after another; ``latest`` is the last."""
    for number, make in enumerate(attempts):
        made = make(folder / f"20260801-10000{number}-aaaaaa")
        link = folder / "latest"
        link.unlink(missing_ok=True)
        link.symlink_to(made.name)
    return folder
