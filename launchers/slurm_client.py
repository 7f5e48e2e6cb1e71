"""Asking Slurm: the few commands of its client that are used, each with its absence and its refusals in words."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from launchers.nodelist import expand_nodelist
from megatron_rl.config.cluster import LauncherConfig

_TIMEOUT_S = 30.0


def node_names(environ: Mapping[str, str]) -> list[str]:
    """Nodes of this allocation in the order of their ranks: Slurm's own answer where there is a client, else ours.

    Raises ValueError outside an allocation and for a list that cannot be read.
    """
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not nodelist:
        raise ValueError("SLURM_JOB_NODELIST is not set")
    if shutil.which("scontrol", path=environ.get("PATH")):
        try:
            answer = _run("scontrol", "show", "hostnames", nodelist)
        except (OSError, subprocess.TimeoutExpired):
            return expand_nodelist(nodelist)
        if answer.returncode == 0 and answer.stdout.split():
            return answer.stdout.split()
    return expand_nodelist(nodelist)


def client_problem(launcher: LauncherConfig) -> str | None:
    """Why this machine cannot submit: no ``sbatch``, no answer, or no such partition; None where it can."""
    if shutil.which("sbatch") is None:
        return "launcher=slurm: there is no sbatch on this machine; submit from a login node, or use --dry-run > job.sbatch"
    try:
        answer = _run("sinfo", "--noheader", "--format=%R")
    except OSError:
        return None  # sbatch itself will refuse what is wrong
    except subprocess.TimeoutExpired:
        return f"launcher=slurm: sinfo did not answer within {_TIMEOUT_S:.0f} s; the controller is down or unreachable"
    if answer.returncode != 0:
        said = (answer.stderr.strip() or answer.stdout.strip() or f"exit code {answer.returncode}").splitlines()[-1]
        return (
            f"launcher=slurm: no cluster answers this machine ({said}); submit from a login node, or use --dry-run > job.sbatch"
        )
    return _partition_problem(launcher.partition, sorted(set(answer.stdout.split())))


def _partition_problem(wanted: str | None, present: list[str]) -> str | None:
    unknown = [name for name in (wanted or "").split(",") if name and name not in present]
    if not unknown:
        return None
    close = get_close_matches(unknown[0], present, n=1, cutoff=0.4)
    advice = f" (did you mean {close[0]}?)" if close else ""
    return f"launcher.partition={wanted}: this cluster has no partition {unknown[0]}{advice}; it has {', '.join(present)}"


def submit(script: Path, folder: Path) -> str:
    """Submit a script from ``folder`` and return the job id.

    Raises ValueError with Slurm's reason and the key that it is about.
    """
    try:
        answer = _run("sbatch", "--parsable", f"--chdir={folder}", str(script))
    except subprocess.TimeoutExpired:
        raise ValueError(f"sbatch did not answer within {_TIMEOUT_S:.0f} s; look at squeue before trying again") from None
    found = re.search(r"^(\d+)(;\S+)?$", answer.stdout, re.MULTILINE)
    if answer.returncode != 0 or found is None:
        reason = (answer.stderr or answer.stdout).strip() or f"exit code {answer.returncode}"
        raise ValueError(f"sbatch refused the job ({_key_of(reason)}): {reason}")
    hopeless = _hopeless_reason(found[1])
    if hopeless:
        _run("scancel", found[1])
        raise ValueError(
            f"sbatch refused the job ({HOPELESS[hopeless]}): it would wait for ever ({hopeless}); job {found[1]} is cancelled"
        )
    return found[1]


def jobs_of_script(script: Path) -> list[str]:
    """This user's jobs in the queue that were submitted from ``script``; empty where Slurm does not say."""
    try:
        answer = _run("squeue", "--me", "--noheader", "--format=%i|%o")
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.partition("|") for line in answer.stdout.splitlines()]
    return [job_id for job_id, _, command in lines if command.strip() == str(script)]


HOPELESS = {
    "PartitionNodeLimit": "trainer.nnodes, launcher.partition",
    "PartitionTimeLimit": "launcher.time_limit, launcher.partition",
    "PartitionConfig": "trainer.nnodes, trainer.n_gpus_per_node, launcher.cpus_per_rank",
    "BadConstraints": "launcher.sbatch_options",
    "AccountNotAllowed": "launcher.account",
    "InvalidAccount": "launcher.account",
    "InvalidQOS": "launcher.sbatch_options",
}
"""Reasons for waiting that waiting does not cure -> the keys they are about; many clusters accept such jobs."""


def _hopeless_reason(job_id: str) -> str | None:
    """Why a job that was accepted can never start, as far as Slurm knows right after the submission."""
    try:
        answer = _run("squeue", "--noheader", f"--jobs={job_id}", "--format=%r")
    except (OSError, subprocess.TimeoutExpired):
        return None
    reason = answer.stdout.strip()
    return reason if reason in HOPELESS else None


_KEYS = {
    "partition": "launcher.partition",
    "account": "launcher.account",
    "time limit": "launcher.time_limit",
    "memory": "launcher.sbatch_options",
    "node configuration": "trainer.nnodes, trainer.n_gpus_per_node, launcher.cpus_per_rank",
    "node count": "trainer.nnodes",
    "more processors": "launcher.cpus_per_rank",
    "gres": "trainer.n_gpus_per_node",
    "dependency": "launcher.sbatch_options",
}
"""Words in Slurm's refusals -> the keys they are about."""


def _key_of(reason: str) -> str:
    return next((key for words, key in _KEYS.items() if words in reason.lower()), "launcher.sbatch_options")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
