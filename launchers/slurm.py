"""The batch script and the srun command of a job: text in, text out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launchers.job import JobSpec
from megatron_rl.config.rank_contract import EXIT_CODE_REQUEUE
from megatron_rl.config.run import RunConfig

RANK_MODULE = "launchers.slurm_rank"
"""Module each task of the step runs; it becomes the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """One batch script. Example: ``BatchJob(name="grpo_1n8g", task="train", nodes=1, ranks_per_node=8, gpus_per_node=8)``."""

    name: str
    task: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    """0 = a CPU job, which asks for no GPU."""
    cpus_per_rank: int | None = None
    """None = the cluster's default, usually one core."""
    time_limit: str | int | None = None
    partition: str | None = None
    account: str | None = None
    signal_lead_s: int = 300
    requeue: bool = True
    options: tuple[str, ...] = ()
    """More options of sbatch, as typed."""
    overrides: tuple[str, ...] = ()
    """Of the configuration; those given to the script follow and win."""
    python: str | None = None
    """Interpreter of the installation; None = the script looks for it when it runs."""
    output: str = "slurm-%x-%j.out"
    """Log of the batch shell and of rank 0, in sbatch's own pattern language."""
    summary: str = ""
    """What the job is, for the reader of the script."""
    own_name: bool = False
    """Whether each submission is a run of its own, named after the job; a requeued job keeps its id and so its run."""


def batch_job(config: RunConfig, task: str, overrides: tuple[str, ...], output: Path) -> BatchJob:
    """Batch job of a configuration whose world is known (``config.world.with_world``), run by this interpreter."""
    launcher, trainer = config.launcher, config.trainer
    assert trainer.n_gpus_per_node is not None, "the world is known by now"
    return BatchJob(
        name=trainer.experiment_name,
        task=task,
        nodes=trainer.nnodes,
        ranks_per_node=trainer.n_gpus_per_node,
        gpus_per_node=trainer.n_gpus_per_node if trainer.device == "cuda" else 0,
        cpus_per_rank=launcher.cpus_per_rank,
        time_limit=launcher.time_limit,
        partition=launcher.partition,
        account=launcher.account,
        signal_lead_s=launcher.signal_lead_s,
        requeue=launcher.requeue,
        options=tuple(launcher.sbatch_options),
        overrides=overrides,
        python=sys.executable,
        output=str(output),
    )


def sbatch_script(job: BatchJob) -> str:
    """The whole script: options of sbatch, finding the installation, the run, the way back to the queue."""
    parts = [
        "#!/bin/bash",
        *_options(job),
        "",
        *_comment(job),
        "set -uo pipefail",
        "",
        _interpreter(job),
        "",
        _run(job),
        "",
        _ending(job),
    ]
    return "\n".join(parts) + "\n"


def _options(job: BatchJob) -> Iterator[str]:
    values = {
        "job-name": job.name,
        "partition": job.partition,
        "account": job.account,
        "nodes": job.nodes,
        "ntasks-per-node": job.ranks_per_node,
        "gpus-per-node": job.gpus_per_node or None,
        "cpus-per-task": job.cpus_per_rank,
        "time": job.time_limit,
        "signal": f"B:USR1@{job.signal_lead_s}",
        "output": job.output,
        "open-mode": "append",
    }
    for name, value in values.items():
        if value is not None:
            yield f"#SBATCH --{name}={_option_text(str(value))}"
    yield "#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue"
    yield from (f"#SBATCH {option}" for option in job.options)


def _option_text(value: str) -> str:
    """A value as sbatch reads it: in quotes where it holds spaces."""
    return f'"{value}"' if any(letter.isspace() for letter in value) else value


def _comment(job: BatchJob) -> Iterator[str]:
    if job.summary:
        yield f"# {job.summary}"
    yield f"# One task is one rank. Arguments are overrides, as for `megatron-rl {job.task}`; options of sbatch go before"
    yield "# the script's name, and --nodes and --ntasks-per-node there decide how many ranks there are."


_FIND_PYTHON = """\
# The installation: MEGATRON_RL_HOME, else what is active, else the checkout this script was submitted from.
if [ -n "${MEGATRON_RL_HOME:-}" ]; then
  python=$MEGATRON_RL_HOME/.venv/bin/python
elif command -v megatron-rl >/dev/null; then
  python=$(dirname "$(readlink -f "$(command -v megatron-rl)")")/python
else
  script=$(scontrol show job -o "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* Command=\\([^ ]*\\).*/\\1/p')
  python=$(dirname "$(dirname "$(readlink -f "${script:-$0}")")")/.venv/bin/python
fi
if ! [ -x "$python" ]; then
  echo "error: $(uname -n): no installation of megatron_rl at $python; activate its environment before sbatch," \\
    "or set MEGATRON_RL_HOME to the checkout (and run make setup there)" >&2
  exit 2
fi"""


def _interpreter(job: BatchJob) -> str:
    if job.python is None:
        return _FIND_PYTHON
    return "\n".join(
        [
            f"python={shlex.quote(job.python)}",
            'if ! [ -x "$python" ]; then',
            '  echo "error: $(uname -n) does not see $python; install where all nodes can read it" >&2',
            "  exit 2",
            "fi",
        ]
    )


def _run(job: BatchJob) -> str:
    fixed = " \\\n".join(f"  {shlex.quote(override)}" for override in ("launcher=slurm", *job.overrides))
    return f"""\
# srun does not take this over from sbatch.
[ -z "${{SLURM_CPUS_PER_TASK:-}}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# The time limit is near, or somebody wants the job to stop: have it save. Repeated, for it may not be listening yet.
forward() {{ while kill -USR1 "$run" 2>/dev/null; do sleep 5; done & }}
run=
trap '[ -z "$run" ] || forward' USR1 TERM

(trap '' USR1; exec "$python" -m megatron_rl.cli.main {job.task} \\
{fixed} \\{_name_override(job)}
  trainer.nnodes="$SLURM_JOB_NUM_NODES" trainer.n_gpus_per_node="$SLURM_NTASKS_PER_NODE" "$@") &
run=$!
wait "$run" # a trap cuts it short, so ask again until the run is over; bash remembers its exit code
while kill -0 "$run" 2>/dev/null; do wait "$run"; done
wait "$run"
code=$?"""


def _name_override(job: BatchJob) -> str:
    return '\n  trainer.experiment_name="$SLURM_JOB_NAME-$SLURM_JOB_ID" \\' if job.own_name else ""


def _ending(job: BatchJob) -> str:
    if not job.requeue:
        return f"""\
[ "$code" -ne {EXIT_CODE_REQUEUE} ] || echo "saved as asked; submit the same again to go on"
exit "$code\""""
    return f"""\
# {EXIT_CODE_REQUEUE} = saved because it was told to stop. Only then back to the queue; a cancelled job is no longer RUNNING.
if [ "$code" -eq {EXIT_CODE_REQUEUE} ]; then
  trap '' USR1 TERM # the requeue ends this shell; it must not cut its own client short
  case $(scontrol show job -o "$SLURM_JOB_ID" 2>&1) in
    *" JobState=RUNNING "*) scontrol requeue "$SLURM_JOB_ID" && exit 0 ;;
  esac
  echo "saved as asked, but not sent back to the queue; submit the same again to go on" >&2
fi
exit "$code\""""


def srun_command(job: JobSpec, nodes: int, python: str = sys.executable) -> list[str]:
    """Command that starts every rank: rank r on node ``r // ranks_per_node``, the job ends with its first failing rank."""
    return [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={nodes * job.ranks_per_node}",
        f"--ntasks-per-node={job.ranks_per_node}",
        "--distribution=block",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        "--wait=60",
        python,
        "-m",
        RANK_MODULE,
        job.module,
        job.task,
        str(job.run_dir),
    ]
