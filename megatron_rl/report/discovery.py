"""Which run folders a path on the command line means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run_files import CONFIG_JSON, LATEST, METRICS_FILE
from megatron_rl.config.spelling import nearest_choice

_MAX_LISTED = 12
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Runs below the given paths. Example: ``FoundRuns({"lr_2e-6": Path("sweep/lr_2e-6/20260801-101500-3fa2c1")}, [])``."""

    folders: dict[str, Path]
    """Label -> folder that holds ``metrics.jsonl``; labels are the shortest that tell the runs apart."""
    without_metrics: list[str]
    """Sweep points that have written no step."""


def find_runs(paths: Sequence[Path]) -> FoundRuns:
    """Run folders meant by ``paths``: each a run, an experiment (its ``latest``), or a folder of these.

    Raises:
        ConfigError: a path leads to no metrics; says which file is missing and what lies below.
    """
    folders: list[Path] = []
    waiting: list[str] = []
    for path in paths:
        here = run_at(path)
        if here is not None:
            folders.append(here)
            continue
        is_experiment = (path / LATEST).is_dir()
        points = {} if is_experiment else {child: run_at(child) for child in _subfolders(path)}
        stepless = [child.name for child, run in points.items() if run is None and looks_like_run(child)]
        if stepless and not any(points.values()):
            raise ConfigError([f"{path}: no run in it has finished a step: {', '.join(stepless)}; see their logs/"])
        if not any(points.values()):
            raise ConfigError([explain_no_run(path)])
        folders += [run for run in points.values() if run is not None]
        waiting += stepless
    folders = list(dict.fromkeys(folders))
    return FoundRuns(dict(zip(short_labels(folders), folders, strict=True)), waiting)


def run_at(path: Path) -> Path | None:
    """The folder with metrics that ``path`` itself is, or that its ``latest`` points to."""
    if path.name == METRICS_FILE and path.is_file():
        return path.parent.resolve()
    for folder in (path, path / LATEST):
        if (folder / METRICS_FILE).is_file():
            return folder.resolve()
    return None


def explain_no_run(path: Path) -> str:
    """Why ``path`` is no run, and what could have been meant."""
    if not path.exists():
        siblings = [child.name for child in _subfolders(path.parent)]
        close = nearest_choice(path.name, siblings)
        return f"{path}: no such folder" + (f"; did you mean {path.parent / close}?" if close else "")
    if not path.is_dir():
        return f"{path}: give a run folder, one that holds {METRICS_FILE}"
    missing = path / LATEST / METRICS_FILE if (path / LATEST).is_dir() else path / METRICS_FILE
    text = f"{missing} holds no finished step" if missing.exists() else f"{missing} is missing"
    if looks_like_run(path):
        text += ": the run has finished no step yet, or failed before its first (see logs/)"
    below = list(_runs_below(path, _MAX_DEPTH))
    if not below and looks_like_run(path):
        return text
    if not below:
        return text + f"\n  no run folder lies within {_MAX_DEPTH} levels below {path}"
    listed = [f"  {folder}" for folder in below[:_MAX_LISTED]]
    more = [f"  and {len(below) - _MAX_LISTED} more"] if len(below) > _MAX_LISTED else []
    return "\n".join([text, "  run folders below it:", *listed, *more])


def short_labels(folders: Sequence[Path]) -> list[str]:
    """Shortest ends of the paths that differ; the latest attempt of an experiment goes by the experiment's name."""
    shown = [_shown_parts(folder) for folder in folders]
    labels = []
    for parts, least in shown:
        length = least
        while length < len(parts) and sum(_ends_with(other, parts[-length:]) for other, _ in shown) > 1:
            length += 1
        labels.append("/".join(parts[-length:]))
    return labels


def _shown_parts(folder: Path) -> tuple[tuple[str, ...], int]:
    """Parts of the path to show, and how many of them at least."""
    latest = folder.parent / LATEST
    if not latest.is_dir():
        return folder.parts[1:], 1
    return (folder.parent.parts[1:], 1) if latest.resolve() == folder else (folder.parts[1:], 2)


def _ends_with(parts: tuple[str, ...], end: tuple[str, ...]) -> bool:
    return parts[-len(end) :] == end


def looks_like_run(folder: Path) -> bool:
    """Whether a launcher has made ``folder``, or the newest attempt in it."""
    return (folder / CONFIG_JSON).is_file() or (folder / LATEST / CONFIG_JSON).is_file()


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.is_symlink())


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    for child in _subfolders(folder):
        if (child / METRICS_FILE).is_file():
            yield child
        elif depth > 1:
            yield from _runs_below(child, depth - 1)
