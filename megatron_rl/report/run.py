"""A run as its folder tells it: metrics, samples, configuration, environment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megatron_rl.config.run_files import CONFIG_JSON, METRICS_FILE, SAMPLES_FILE
from megatron_rl.observability.environment import ENVIRONMENT_JSON
from megatron_rl.report.attempts import Segment, segments_of
from megatron_rl.report.jsonl_tail import JsonObject, read_objects
from megatron_rl.report.series import Record, finite_or_none, series, step_of

SUPERSEDED_FILE = "metrics.superseded.jsonl"

State = Literal["finished", "running", "stopped"]


@dataclass(frozen=True)
class Sample:
    """One rollout to read."""

    step: int
    uid: str
    prompt: str
    response: str
    reward: float | None
    finish_reason: str


@dataclass(frozen=True)
class Run:
    """Everything a report shows of one run."""

    label: str
    folder: Path
    records: list[Record]
    """One a step, ascending; earlier attempts that this one resumed from are included."""
    samples: list[Sample]
    config: dict[str, str]
    """Dotted key -> JSON text of the value."""
    environment: dict[str, str]
    resumed_at: list[int]
    """First steps computed after a resume."""
    recomputed_steps: list[int]
    """Steps that an earlier attempt in the same folder had reached already."""
    age_s: float
    """Seconds since the metrics were last written."""

    @property
    def last_step(self) -> int:
        """The newest recorded step; 0 before the first."""
        return step_of(self.records[-1]) if self.records else 0

    @property
    def total_steps(self) -> int | None:
        """Steps the configuration asks for, where it says so in steps."""
        supervised = any("sft/loss" in record for record in self.records[:5])
        total = self.config.get("sft.total_steps" if supervised else "trainer.total_training_steps", "null")
        return int(total) if total.isdigit() else None

    @property
    def state(self) -> State:
        """Whether the last step is reached; if not, whether the file is still being written."""
        if self.total_steps is not None and self.last_step >= self.total_steps:
            return "finished"
        recent = series(self.records[-20:], "timing_s/step").finite()
        patience_s = max(60.0, 5 * max(recent, default=0.0))
        return "running" if self.age_s < patience_s else "stopped"


def read_run(label: str, folder: Path, now: Callable[[], float] = time.time) -> Run:
    """Read a run folder; whatever is missing besides the metrics is simply absent from the report."""
    config = flat_json(folder / CONFIG_JSON)
    segments = segments_of(folder, config)
    return Run(
        label=label,
        folder=folder,
        records=clean_records(objects_in(segments, METRICS_FILE)),
        samples=clean_samples(objects_in(segments, SAMPLES_FILE)),
        config=config,
        environment=flat_json(folder / ENVIRONMENT_JSON),
        resumed_at=[part.first_step for part in segments[1:]],
        recomputed_steps=recomputed_steps(segments),
        age_s=age_s(folder, now),
    )


def age_s(folder: Path, now: Callable[[], float] = time.time) -> float:
    """Seconds since the metrics in ``folder`` were last written."""
    return max(0.0, now() - (folder / METRICS_FILE).stat().st_mtime)


def objects_in(segments: Sequence[Segment], file_name: str) -> list[JsonObject]:
    """Objects of a file over the attempts of a run, oldest first."""
    return [item for part in segments for item in part.select(file_name)]


def recomputed_steps(segments: Sequence[Segment]) -> list[int]:
    """Steps whose records a restart in the same folder has replaced."""
    superseded = [item for part in segments for item in read_objects(part.folder / SUPERSEDED_FILE)]
    return sorted({step_of(record) for record in clean_records(superseded)})


def clean_records(items: Sequence[JsonObject]) -> list[Record]:
    """Records with a step and plain numbers, one a step (the newest), ascending."""
    by_step: dict[int, Record] = {}
    for item in items:
        step = finite_or_none(item.get("step"))
        if step is not None:
            by_step[int(step)] = {name: finite_or_none(value) for name, value in item.items()}
    return [by_step[step] for step in sorted(by_step)]


def clean_samples(items: Sequence[JsonObject]) -> list[Sample]:
    """Samples with a step; other fields may be missing."""
    samples = []
    for item in items:
        step = finite_or_none(item.get("step"))
        if step is not None:
            text = {name: str(item.get(name, "")) for name in ("uid", "prompt", "response", "finish_reason")}
            samples.append(Sample(step=int(step), reward=finite_or_none(item.get("reward")), **text))
    return sorted(samples, key=lambda sample: sample.step)


def flat_json(path: Path) -> dict[str, str]:
    """Dotted key -> JSON text; empty where the file is missing or no JSON object."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return {}
    return _flatten(content, "") if isinstance(content, dict) else {}


def _flatten(content: Mapping[str, object], prefix: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, dict) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value, ensure_ascii=False)
    return flat
