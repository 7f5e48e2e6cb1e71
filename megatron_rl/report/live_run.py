"""A run while it goes on: reads what was added, follows ``latest`` to a new attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron_rl.config.run_files import CONFIG_JSON, LATEST, METRICS_FILE, SAMPLES_FILE
from megatron_rl.observability.environment import ENVIRONMENT_JSON
from megatron_rl.report.attempts import Segment, segments_of
from megatron_rl.report.discovery import run_at, short_labels
from megatron_rl.report.findings import Finding, findings
from megatron_rl.report.jsonl_tail import JsonlTail, JsonObject
from megatron_rl.report.run import (
    Run,
    age_s,
    clean_records,
    clean_samples,
    flat_json,
    objects_in,
    recomputed_steps,
)


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    run: Run
    findings: Sequence[Finding]
    waiting: bool = False
    """``latest`` points to an attempt without a finished step; this is still the one before."""


class LiveRun:
    """Follows what ``path`` means: a run folder, or an experiment whose newest attempt may change."""

    def __init__(self, path: Path) -> None:
        """Read nothing yet."""
        self.path = path
        self._files: _AttemptFiles | None = None
        self._snapshot: Snapshot | None = None

    @property
    def attempt(self) -> Path:
        """Folder of the newest attempt, whether or not it has finished a step."""
        folder = self.path.parent if self.path.is_file() else self.path
        latest = folder / LATEST
        return (latest if latest.is_dir() else folder).resolve()

    def refresh(self) -> Snapshot | None:
        """The run as of now; None before its first finished step."""
        folder = run_at(self.path)
        if folder is None:
            return None if self._snapshot is None else replace(self._snapshot, waiting=True)
        if self._files is None or self._files.folder != folder:
            self._files = _AttemptFiles(folder)
        if self._files.read() or self._snapshot is None:
            run = self._files.run()
            self._snapshot = Snapshot(run, findings(run)) if run.records else None
        if self._snapshot is None:
            return None
        return replace(self._snapshot, run=replace(self._snapshot.run, age_s=age_s(folder)))


class _AttemptFiles:
    """The growing files of one attempt, and the finished ones of the attempts before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tails = {name: JsonlTail(folder / name) for name in (METRICS_FILE, SAMPLES_FILE)}
        self._own: dict[str, list[JsonObject]] = {name: [] for name in self._tails}
        self._segments: list[Segment] = []

    def read(self) -> bool:
        """Take in what is new; returns whether anything is."""
        changed = False
        for name, tail in self._tails.items():
            items, restarted = tail.read_new()
            if restarted:
                self._own[name] = []
                self._segments = segments_of(self.folder, flat_json(self.folder / CONFIG_JSON))
            self._own[name] += items
            changed = changed or restarted or bool(items)
        return changed

    def run(self) -> Run:
        """Everything read so far; earlier attempts end where this one begins."""
        earlier = self._segments[:-1]
        return Run(
            label=short_labels([self.folder])[0],
            folder=self.folder,
            records=clean_records([*objects_in(earlier, METRICS_FILE), *self._own[METRICS_FILE]]),
            samples=clean_samples([*objects_in(earlier, SAMPLES_FILE), *self._own[SAMPLES_FILE]]),
            config=flat_json(self.folder / CONFIG_JSON),
            environment=flat_json(self.folder / ENVIRONMENT_JSON),
            resumed_at=[part.first_step for part in self._segments[1:]],
            recomputed_steps=recomputed_steps(self._segments),
            age_s=age_s(self.folder),
        )
