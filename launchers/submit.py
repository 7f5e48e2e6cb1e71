"""Starting a task: here and now under torchrun, or as the rank this process already is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import cast

from launchers.environment import OutsideLaunch, num_visible_gpus, outside_launch, worker_environment
from launchers.job import WORKER_MODULE, JobSpec
from launchers.ports import port_problem
from launchers.run_folder import agree_on_run_folder, create_run_folder
from launchers.supervise import run_supervised
from launchers.torchrun import torchrun_command
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run import RunConfig
from megatron_rl.config.validate import validate
from megatron_rl.config.world import Task, ranks_per_node, with_world


def launch_task(task: str, config: RunConfig, module: str = WORKER_MODULE) -> int:
    """Run a task on its ranks and return the exit code.

    Without ``RANK`` in the environment, this process makes the run folder and starts the ranks of this machine. With it,
    this process is a rank already: it joins the run folder of rank 0 and becomes the worker (does not return).

    Raises:
        ConfigError: every rule the configuration breaks, before anything is written or started.
    """
    try:
        outside = outside_launch(os.environ)
    except ValueError as failure:
        raise ConfigError([str(failure)]) from None
    gpus = num_visible_gpus(os.environ) if config.trainer.device != "cpu" else 0
    kind = cast(Task, task)
    world = outside.world_size if outside else ranks_per_node(config, gpus, kind) * config.trainer.nnodes
    problems = validate(config, task=kind, world_size=world)
    if gpus and world // config.trainer.nnodes > gpus:
        problems.append(f"trainer.n_gpus_per_node={world // config.trainer.nnodes}: this machine shows {gpus} GPUs")
    if problems:
        raise ConfigError(problems)
    resolved = with_world(config, world, gpus)
    start = _become_worker(outside) if outside else _start_here
    return start(task, resolved, module)


def _environment(config: RunConfig, attempt: str) -> dict[str, str]:
    per_node = config.trainer.n_gpus_per_node
    assert per_node is not None, "the world is known by now"
    return worker_environment(
        os.environ,
        attempt=attempt,
        on_gpu=config.trainer.device == "cuda",
        ranks_per_node=per_node,
        kv_cache_gib=config.rollout.kv_cache_gib,
    )


def _start_here(task: str, config: RunConfig, module: str) -> int:
    if config.trainer.nnodes > 1:
        raise ConfigError(
            [
                f"trainer.nnodes={config.trainer.nnodes}: this command starts the ranks of one machine; "
                "start it on every node with torchrun or srun instead (they set RANK)"
            ]
        )
    port = config.launcher.master_port
    taken = port_problem(port) if port is not None else None
    if taken:
        raise ConfigError([taken])
    run_dir = create_run_folder(config)
    job = JobSpec(
        task=task,
        run_dir=run_dir,
        ranks_per_node=config.trainer.n_gpus_per_node or 1,
        module=module,
        master_addr=config.launcher.master_addr,
        master_port=port,
    )
    print(f"{task}: {job.ranks_per_node} ranks, run folder {run_dir}", flush=True)
    return run_supervised(torchrun_command(job), _environment(config, run_dir.name), job.logs_dir)


def _become_worker(launch: OutsideLaunch) -> Callable[[str, RunConfig, str], int]:
    def start(task: str, config: RunConfig, module: str) -> int:
        run_dir = agree_on_run_folder(config, launch)
        command = [sys.executable, "-m", module, task, str(run_dir)]
        os.execve(sys.executable, command, _environment(config, run_dir.name))

    return start
