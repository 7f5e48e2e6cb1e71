"""``megatron-rl launch``: check everything, show what will run, then run it here or submit it to Slurm."""

from __future__ import annotations

from pathlib import Path

from launchers.batch_file import BatchFile
from launchers.job import JobSpec
from launchers.plan_summary import plan_summary
from launchers.slurm import batch_job
from launchers.slurm_client import client_problem
from launchers.submit import launch_task, resolve_world
from launchers.torchrun import torchrun_command
from megatron_rl.cli.compose import compose_run
from megatron_rl.cli.own_keys import TASK, split_own_keys, take_flag, take_option, take_task
from megatron_rl.cli.sweep import CONFIG, DRY_RUN, run_sweep_file
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import experiment_dir
from megatron_rl.config.world import Task, for_cluster_nodes

SHORTHANDS = {"nodes": "trainer.nnodes", "gpus_per_node": "trainer.n_gpus_per_node"}
"""Names accepted here for the keys behind them."""


def run(argv: list[str]) -> int:
    """Launch a task; ``--task=sft`` and the like launch another one than train, ``--config FILE`` a sweep.

    Raises:
        ConfigError: every problem at once, before anything is submitted.
    """
    sweep_file, argv = take_option(CONFIG, argv, "a sweep file, for example --config sweep.yaml")
    dry_run, argv = take_flag(DRY_RUN, argv)
    if sweep_file is not None:
        return run_sweep_file(Path(sweep_file), argv, dry_run)
    task, argv = take_task(argv)
    overrides = plain_overrides(argv)
    config = compose_run(overrides)
    if config.launcher.name == "slurm":
        return _submit(task, config, overrides, dry_run)
    if dry_run:
        return _show_command(task, resolve_world(task, config))
    return launch_task(task, config)


def plain_overrides(argv: list[str]) -> list[str]:
    """Overrides with the shorthands written out. Raises ConfigError for options and keys that do not exist."""
    sizes, overrides = split_own_keys(argv, SHORTHANDS, (DRY_RUN, TASK, CONFIG, "--cfg", "--help"))
    return [*overrides, *(f"{SHORTHANDS[key]}={value}" for key, value in sizes.items())]


def _submit(task: Task, config: RunConfig, overrides: list[str], dry_run: bool) -> int:
    resolved = _resolved_for_cluster(task, config, None if dry_run else client_problem(config.launcher))
    folder = experiment_dir(resolved) / "slurm"
    script = BatchFile.of(batch_job(resolved, task, _kept(overrides), folder / "%j.out"), folder)
    print(script.text)
    print(f"# {plan_summary(task, resolved)}".replace("\n", "\n# "))
    if dry_run:
        return 0
    job_id = script.submit()
    print(f"log {folder / f'{job_id}.out'}; one folder per attempt in {experiment_dir(resolved)}, newest at latest/")
    return 0


def _resolved_for_cluster(task: Task, config: RunConfig, cluster_problem: str | None) -> RunConfig:
    """The configuration resolved for the cluster's nodes."""
    problems = [] if cluster_problem is None else [cluster_problem]
    config = for_cluster_nodes(config)
    trainer = config.trainer
    if trainer.n_gpus_per_node is None:
        problems.append("trainer.n_gpus_per_node=null: tell how many ranks a node runs, for example gpus_per_node=8")
        trainer = trainer.model_copy(update={"n_gpus_per_node": 8})
    try:
        resolved = resolve_world(task, config.model_copy(update={"trainer": trainer}), runs_here=False)
    except ConfigError as failure:
        raise ConfigError([*problems, *failure.problems]) from None
    if problems:
        raise ConfigError(problems)
    return resolved


def _kept(overrides: list[str]) -> tuple[str, ...]:
    """Overrides for the script, which names the launcher and takes the sizes from the allocation."""
    given = (*SHORTHANDS.values(), "launcher")
    return tuple(override for override in overrides if override.partition("=")[0] not in given)


def _show_command(task: Task, config: RunConfig) -> int:
    """Print the torchrun command that :func:`launch_task` would run."""
    job = JobSpec(
        task=task,
        run_dir=experiment_dir(config) / "RUN",
        ranks_per_node=config.trainer.n_gpus_per_node or 1,
        master_addr=config.launcher.master_addr,
        master_port=config.launcher.master_port or (29500 if config.trainer.nnodes > 1 else None),
        nodes=config.trainer.nnodes,
        node_rank=config.launcher.node_rank or 0,
        max_restarts=config.launcher.max_restarts,
    )
    print(" ".join(torchrun_command(job)))
    print(plan_summary(task, config))
    return 0
