"""Running the points of a sweep one after the other, or submitting them; what is done is not done again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launchers.failure import failure_line
from launchers.sweep_plan import PlannedPoint, SweepPlan
from launchers.sweep_state import (
    PointRecord,
    State,
    newest_attempt,
    read_record,
    settled,
    stale_problems,
    write_manifest,
    write_record,
)
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.rank_contract import EXIT_CODE_REQUEUE

STOPPING_CODES = (EXIT_CODE_REQUEUE, 130, 143)
"""Exit codes of a run that was told to stop (saved, SIGINT, SIGTERM): the rest of the sweep is not wanted either."""


@dataclass(frozen=True, slots=True)
class Started:
    """What became of a start. Example: ``Started(exit_code=0)``, or ``Started(job_id="4711")`` in a queue."""

    exit_code: int | None = None
    job_id: str | None = None


Start = Callable[[PlannedPoint], Started]
"""Runs or submits one point."""
Decision = Literal["run", "skip finished", "skip failed", "skip submitted", "skip estimated"]


def decide(record: PointRecord | None, runs: bool, retry: bool) -> Decision:
    """What to do with a point, from its record alone."""
    if not runs:
        return "skip estimated"
    if record is None or record.state in ("started", "stopped"):
        return "run"
    if record.state == "failed":
        return "run" if retry else "skip failed"
    if record.state == "submitted":
        return "run" if retry else "skip submitted"
    return "skip finished"


def run_sweep(plan: SweepPlan, start: Start) -> int:
    """Run or submit what is left of the sweep; returns 0, 1 where a point has failed, or the code of an interruption.

    Raises:
        ConfigError: a point's earlier results come from other overrides.
    """
    stale = stale_problems(plan)
    if stale:
        raise ConfigError(stale)
    write_manifest(plan)
    for number, planned in enumerate(plan.points, 1):
        name = planned.point.name
        decision = decide(settled(plan.folder, name), planned.runs, plan.spec.retry)
        print(f"[{number}/{len(plan.points)}] {name}: {_announced(decision, planned)}", flush=True)
        if decision != "run":
            continue
        code = _run_point(plan.folder, planned, start)
        if code is not None and code in STOPPING_CODES:
            print(f"{name} was told to stop, and the sweep with it; the same command goes on from here")
            return code
    failed = [p for p in plan.points if p.runs and _state(plan.folder, p) == "failed"]
    return 1 if failed else 0


def _announced(decision: Decision, planned: PlannedPoint) -> str:
    words: dict[Decision, str] = {
        "run": f"{planned.num_ranks} ranks",
        "skip finished": "finished earlier",
        "skip failed": "failed earlier; retry=true runs it again",
        "skip submitted": "submitted earlier; retry=true submits it again",
        "skip estimated": f"{planned.num_ranks} ranks, more than this host has: model output only",
    }
    return words[decision]


def _run_point(folder: Path, planned: PlannedPoint, start: Start) -> int | None:
    name, overrides = planned.point.name, list(planned.point.overrides)
    earlier = read_record(folder, name)
    write_record(folder, name, PointRecord(state="started", overrides=overrides))
    before, began = newest_attempt(folder / name), time.monotonic()
    try:
        started = start(planned)
    except ConfigError as failure:
        print(failure.report(), flush=True)
        failed = PointRecord(state="failed", overrides=overrides, reason="; ".join(failure.problems))
        submitted = earlier if earlier is not None and earlier.state == "submitted" else None
        write_record(folder, name, submitted or failed)
        return None
    attempt = newest_attempt(folder / name)
    run_dir = attempt if attempt != before else None
    state = _state_of(started)
    record = PointRecord(
        state=state,
        overrides=overrides,
        run_dir=None if run_dir is None else str(run_dir),
        reason=_reason(started, run_dir) if state == "failed" else "",
        job_id=started.job_id,
        wall_s=None if started.exit_code is None else time.monotonic() - began,
    )
    write_record(folder, name, record)
    return started.exit_code


def _state_of(started: Started) -> State:
    if started.exit_code is None:
        return "submitted"
    if started.exit_code in STOPPING_CODES:
        return "stopped"
    return "finished" if started.exit_code == 0 else "failed"


def _reason(started: Started, run_dir: Path | None) -> str:
    said = failure_line(run_dir / "logs") if run_dir is not None else ""
    return said or f"exit code {started.exit_code}"


def _state(folder: Path, planned: PlannedPoint) -> State | None:
    record = settled(folder, planned.point.name)
    return None if record is None else record.state
