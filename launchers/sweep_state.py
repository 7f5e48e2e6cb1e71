"""What is known of a sweep's points: ``sweep.json`` in its folder, ``point.json`` in each point's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, NonNegativeFloat, PositiveInt

from launchers.sweep_plan import PlannedPoint, SweepPlan
from launchers.sweep_queue import has_left_the_queue, last_words
from launchers.sweep_spec import SweepSpec
from megatron_rl.config.atomic_files import write_atomically
from megatron_rl.config.base import Section
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run_files import LATEST, METRICS_FILE, read_run_config
from megatron_rl.observability.memory_summary import MEMORY_JSON
from megatron_rl.observability.sinks import read_metrics

SWEEP_JSON, POINT_JSON = "sweep.json", "point.json"

State = Literal["started", "submitted", "finished", "failed", "stopped"]
"""started: under way, or the sweep was killed. stopped: it saved because it was told to."""


class PointRecord(Section):
    """The last thing that happened to a point."""

    state: State
    overrides: list[str]
    run_dir: str | None = None
    """Of the newest attempt."""
    reason: str = ""
    """Why it failed, in a line."""
    job_id: str | None = None
    """Of the cluster's queue."""
    wall_s: NonNegativeFloat | None = None
    """From start to end of the newest attempt, start-up included."""


class ManifestPoint(Section):
    """A point of the manifest."""

    name: str
    settings: dict[str, str]
    num_ranks: PositiveInt
    runs: bool
    overrides: list[str]


class Manifest(Section):
    """What the sweep is made of; enough to write its results again."""

    spec: SweepSpec
    points: list[ManifestPoint] = Field(min_length=1)


def write_manifest(plan: SweepPlan) -> None:
    """Record the plan in the sweep's folder. Raises ConfigError where the folder cannot be made."""
    points = [
        ManifestPoint(
            name=planned.point.name,
            settings=dict(planned.point.settings),
            num_ranks=planned.num_ranks,
            runs=planned.runs,
            overrides=list(planned.point.overrides),
        )
        for planned in plan.points
    ]
    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise ConfigError([f"trainer.output_dir: cannot make {plan.folder}: {failure}"]) from None
    _write(plan.folder / SWEEP_JSON, Manifest(spec=plan.spec, points=points))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a sweep. Raises ConfigError where the folder holds none."""
    path = folder / SWEEP_JSON
    if not path.is_file():
        raise ConfigError([f"{folder}: no sweep: {SWEEP_JSON} is missing"])
    return Manifest.model_validate_json(path.read_text())


def read_record(folder: Path, name: str) -> PointRecord | None:
    """What is known of a point; None where it was never started."""
    path = folder / name / POINT_JSON
    return PointRecord.model_validate_json(path.read_text()) if path.is_file() else None


def settled(folder: Path, name: str) -> PointRecord | None:
    """What is known of a point, after a look at what a submitted job has done since.

    It has finished when its last step is written, and failed when the queue has let go of it before.
    """
    record = read_record(folder, name)
    if record is None or record.state != "submitted" or record.job_id is None:
        return record
    attempt = newest_attempt(folder / name)
    run_dir = None if attempt is None else str(attempt)
    gone = has_left_the_queue(record.job_id)
    if attempt is not None and _is_complete(attempt, gone):
        now = record.model_copy(update={"state": "finished", "run_dir": run_dir})
    elif gone:
        reason = last_words(folder / name, attempt, record.job_id)
        now = record.model_copy(update={"state": "failed", "run_dir": run_dir, "reason": reason})
    else:
        return record
    write_record(folder, name, now)
    return now


def _is_complete(attempt: Path, gone: bool) -> bool:
    """Whether the attempt took its last step; where the steps follow from epochs, whether its job ended the loop and left."""
    total, metrics = read_run_config(attempt).trainer.total_training_steps, attempt / METRICS_FILE
    if total is None:
        return gone and (attempt / MEMORY_JSON).exists()
    steps = [record["step"] or 0 for record in read_metrics(metrics)] if metrics.exists() else []
    return max(steps, default=0) >= total


def newest_attempt(point_dir: Path) -> Path | None:
    """Run folder of a point's newest attempt."""
    link = point_dir / LATEST
    return link.resolve() if link.is_dir() else None


def write_record(folder: Path, name: str, record: PointRecord) -> None:
    """Record what happened to a point."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    _write(folder / name / POINT_JSON, record)


def stale_problems(plan: SweepPlan) -> list[str]:
    """Points whose results come from other overrides than they have now; failed ones may change, to be mended."""
    problems = []
    for planned in plan.points:
        record = read_record(plan.folder, planned.point.name)
        if record is not None and record.state != "failed":
            difference = _difference(record, planned)
            if difference:
                problems.append(
                    f"{planned.point.name}: its results in {plan.folder} come from other overrides ({difference}); "
                    "give the sweep another name=, or remove that folder"
                )
    return problems


def _difference(record: PointRecord, planned: PlannedPoint) -> str:
    before, now = set(record.overrides), set(planned.point.overrides)
    words = [f"then {text}" for text in sorted(before - now)] + [f"now {text}" for text in sorted(now - before)]
    return ", ".join(words)


def _write(path: Path, content: BaseModel) -> None:
    write_atomically(path, content.model_dump_json(indent=1) + "\n")
