"""Points of a sweep as Slurm jobs: one batch script each, submitted at once."""

from __future__ import annotations

from dataclasses import replace

from launchers.batch_file import BatchFile
from launchers.slurm import batch_job
from launchers.slurm_client import client_problem
from launchers.submit import resolve_world
from launchers.sweep import Started
from launchers.sweep_plan import PlannedPoint, SweepPlan
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run_files import experiment_dir
from megatron_rl.config.world import for_cluster_nodes

GIVEN_BY_THE_SCRIPT = ("trainer.nnodes", "trainer.n_gpus_per_node", "launcher")
"""Keys that the script takes from its allocation."""


def point_script(planned: PlannedPoint) -> BatchFile:
    """The batch script of a point, in the point's own folder; the job is named after sweep and point.

    Raises:
        ConfigError: what no cluster could run.
    """
    resolved = resolve_world("train", for_cluster_nodes(planned.config), runs_here=False)
    folder = experiment_dir(resolved) / "slurm"
    overrides = tuple(text for text in planned.point.overrides if text.partition("=")[0] not in GIVEN_BY_THE_SCRIPT)
    job = batch_job(resolved, "train", overrides, folder / "%j.out")
    named = replace(job, name=f"{resolved.trainer.project_name}-{planned.point.name}")
    return BatchFile.of(named, folder)


def require_scripts(plan: SweepPlan, *, submits: bool) -> list[BatchFile]:
    """Scripts of all points, made before the first is submitted.

    Raises:
        ConfigError: every problem of every point, and, where ``submits``, what keeps this machine from submitting.
    """
    problem = client_problem(plan.points[0].config.launcher) if submits else None
    problems = [] if problem is None else [problem]
    scripts = []
    port = plan.points[0].config.launcher.master_port
    if port is not None:
        problems.append(f"launcher.master_port={port}: jobs of a sweep may meet on a node; leave it out, each then has its own")
    for planned in plan.points:
        try:
            scripts.append(point_script(planned))
        except ConfigError as failure:
            problems += [f"{planned.point.name}: {text}" for text in failure.problems]
    if problems:
        raise ConfigError(problems)
    return scripts


def submit_point(planned: PlannedPoint) -> Started:
    """Write the script and hand it to sbatch.

    Raises:
        ConfigError: Slurm refuses it, in its words.
    """
    return Started(job_id=point_script(planned).submit())
