"""Whether a submitted point still has a job, and why one that is gone left no result."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launchers.failure import failure_line

_TIMEOUT_S = 30.0
_UNKNOWN_JOB = "invalid job id"
"""squeue's words for a job that it has forgotten."""


def has_left_the_queue(job_id: str) -> bool:
    """True only where Slurm says so: without a client or an answer the job may still be there."""
    command = ["squeue", "--noheader", f"--jobs={job_id}", "--format=%T"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    if answer.returncode != 0:
        return _UNKNOWN_JOB in answer.stderr.lower()
    return not answer.stdout.strip()


def last_words(point_dir: Path, attempt: Path | None, job_id: str) -> str:
    """The first failing rank's line, else the last line of the batch job's log."""
    said = failure_line(attempt / "logs") if attempt is not None else ""
    log = point_dir / "slurm" / f"{job_id}.out"
    if not said and log.exists():
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        said = lines[-1] if lines else ""
    return said or f"job {job_id} left the queue without a word"
