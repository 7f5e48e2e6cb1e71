"""Whether a submitted point still has a job, and why one that is gone left no result."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from launchers.failure import failure_line

_TIMEOUT_S = 30.0
_HEADLINE = "error: "
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
    """Why a job ended: what the launcher wrote into the batch log, else what the run folder or the log ends with."""
    log = point_dir / "slurm" / f"{job_id}.out"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    said = _explained(lines) or (failure_line(attempt / "logs") if attempt is not None else "")
    return said or (lines[-1].strip() if lines else f"job {job_id} left the queue without a word")


def _explained(lines: Sequence[str]) -> str:
    """The launcher's last headline with the last of the rank's lines below it; empty where there is none."""
    heads = [i for i, line in enumerate(lines) if line.startswith(_HEADLINE)]
    if not heads:
        return ""
    headline = lines[heads[-1]].removeprefix(_HEADLINE).partition("; all output")[0]
    of_the_rank = [line.partition(" | ")[2].strip() for line in lines[heads[-1] + 1 :] if " | " in line]
    return f"{headline}: {of_the_rank[-1]}" if of_the_rank else headline
