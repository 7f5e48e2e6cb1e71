"""Starting a task here and now: under torchrun, as a Slurm step of this allocation, or as the rank this process already is."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import cast

from launchers.environment import OutsideLaunch, num_visible_gpus, outside_launch, whole_number, worker_environment
from launchers.job import WORKER_MODULE, JobSpec
from launchers.meeting import hand_out, receive
from launchers.plan_summary import plan_summary
from launchers.ports import port_problem
from launchers.preflight import NodeNeeds
from launchers.rendezvous import head_address, port_of_job
from launchers.run_folder import agree_on_run_folder, create_run_folder, require_same_config
from launchers.slurm import srun_command
from launchers.slurm_client import node_names
from launchers.slurm_rank import NEEDS
from launchers.slurm_step import SlurmStep
from launchers.sole_writer import sole_writer
from launchers.supervise import run_supervised
from launchers.torchrun import torchrun_command
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.rank_contract import NODES
from megatron_rl.config.run import RunConfig
from megatron_rl.config.validate import validate
from megatron_rl.config.world import Task, ranks_per_node, with_world


def launch_task(task: str, config: RunConfig, module: str = WORKER_MODULE) -> int:
    """Run a task on its ranks and return the exit code.

    Without ``RANK`` in the environment, this process makes the run folder and starts the ranks, by ``launcher.name``. With
    it, this process is a rank already: it joins the run folder of rank 0 and becomes the worker (does not return).

    Raises:
        ConfigError: every rule the configuration breaks, before anything is written or started.
    """
    try:
        outside = outside_launch(os.environ)
    except ValueError as failure:
        raise ConfigError([str(failure)]) from None
    resolved = resolve_world(task, config, None if outside is None else outside.world_size)
    if outside is not None:
        return _become_worker(task, resolved, module, outside)
    if resolved.launcher.name == "slurm":
        return _start_step(task, resolved, module)
    if resolved.trainer.nnodes > 1:
        return _start_node(task, resolved, module)
    return _start_here(task, resolved, module)


def resolve_world(task: str, config: RunConfig, world_size: int | None = None, *, runs_here: bool = True) -> RunConfig:
    """The configuration with everything filled in that follows from the ranks and from this machine.

    Args:
        task: what is to be run.
        config: as composed.
        world_size: ranks of the job where somebody else started them; None = what the configuration says.
        runs_here: whether this machine's GPUs count; False on a login node.

    Raises:
        ConfigError: every problem at once.
    """
    gpus = num_visible_gpus(os.environ) if runs_here and config.trainer.device != "cpu" else 0
    kind = cast(Task, task)
    world = world_size or ranks_per_node(config, gpus, kind) * config.trainer.nnodes
    under_launcher = config if world_size is None else _started_outside(config)
    problems = validate(under_launcher, task=kind, world_size=world, num_gpus=gpus)
    if gpus and world // config.trainer.nnodes > gpus:
        problems.append(f"trainer.n_gpus_per_node={world // config.trainer.nnodes}: this machine shows {gpus} GPUs")
    if problems:
        raise ConfigError(problems)
    return with_world(config, world, gpus)


def _started_outside(config: RunConfig) -> RunConfig:
    """For validation: whoever started the ranks, it was not ``launcher.name``."""
    return config.model_copy(update={"launcher": config.launcher.model_copy(update={"name": "torchrun", "max_restarts": 0})})


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


def _job(task: str, config: RunConfig, module: str, run_dir: Path, port: int | None) -> JobSpec:
    return JobSpec(
        task=task,
        run_dir=run_dir,
        ranks_per_node=config.trainer.n_gpus_per_node or 1,
        module=module,
        master_addr=config.launcher.master_addr,
        master_port=port,
        max_restarts=config.launcher.max_restarts,
    )


def _require_free_port(port: int | None) -> None:
    taken = port_problem(port) if port is not None else None
    if taken:
        raise ConfigError([taken])


def _start_here(task: str, config: RunConfig, module: str) -> int:
    port = config.launcher.master_port
    _require_free_port(port)
    with sole_writer(task, config):
        run_dir = create_run_folder(config)
        job = _job(task, config, module, run_dir, port)
        print(f"{task}: {job.ranks_per_node} ranks, run folder {run_dir}", flush=True)
        return run_supervised(torchrun_command(job), _environment(config, run_dir.name), job.logs_dir)


def _start_node(task: str, config: RunConfig, module: str) -> int:
    """One machine of several, each running this command; node 0 answers for the experiment's folder."""
    place = _node_place(config)
    config = config.model_copy(update={"launcher": config.launcher.model_copy(update={"node_rank": None})})  # one for all
    with sole_writer(task, config) if place[2] == 0 else nullcontext():
        return _run_node(task, config, module, *place)


def _run_node(task: str, config: RunConfig, module: str, host: str, port: int, node_rank: int) -> int:
    """Node 0 makes the run folder and tells the others."""
    patience_s, nodes = float(config.launcher.rendezvous_timeout_s), config.trainer.nnodes
    try:
        if node_rank == 0:
            _require_free_port(port)
            run_dir = create_run_folder(config)
            hand_out(port, str(run_dir), nodes, patience_s)
        else:
            run_dir = Path(receive(host, port, node_rank, patience_s))
            require_same_config(config, run_dir, f"node {node_rank}", "node 0")
    except ConfigError:
        raise
    except ValueError as failure:
        raise ConfigError([str(failure)]) from None
    job = replace(_job(task, config, module, run_dir, port), master_addr=host, nodes=nodes, node_rank=node_rank)
    print(f"{task}: node {node_rank} of {nodes}, {job.ranks_per_node} ranks each, run folder {run_dir}", flush=True)
    return run_supervised(torchrun_command(job), _environment(config, run_dir.name), job.logs_dir)


def _node_place(config: RunConfig) -> tuple[str, int, int]:
    """Head address, port and number of this node, from the configuration or the environment."""
    launcher, problems = config.launcher, []
    host = launcher.master_addr or os.environ.get("MASTER_ADDR")
    try:
        port = launcher.master_port or whole_number(os.environ, "MASTER_PORT") or None
        numbers = [whole_number(os.environ, name) for name in ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID")]
    except ValueError as failure:
        raise ConfigError([str(failure)]) from None
    node_rank = next((number for number in (launcher.node_rank, *numbers) if number is not None), None)
    if host is None:
        problems.append("launcher.master_addr=null: with trainer.nnodes > 1 every node needs the address of node 0")
    if port is None:
        problems.append("launcher.master_port=null: with trainer.nnodes > 1 every node needs the same port")
    if node_rank is None:
        problems.append("launcher.node_rank=null: neither NODE_RANK, GROUP_RANK nor SLURM_NODEID tells which node this is")
    elif node_rank >= config.trainer.nnodes:
        problems.append(f"launcher.node_rank={node_rank}: with trainer.nnodes={config.trainer.nnodes} nodes count from 0")
    if problems:
        raise ConfigError(problems)
    assert host is not None and port is not None and node_rank is not None
    return host, port, node_rank


def _start_step(task: str, config: RunConfig, module: str) -> int:
    """Start one rank per task in this Slurm allocation; the nodes are checked before weights load."""
    nodes = _allocation(config)
    address, port = _head(config, nodes)
    run_dir = create_run_folder(config)
    job = _job(task, config, module, run_dir, port)
    needs = NodeNeeds(
        folder=str(job.logs_dir / "preflight"),
        gpus=job.ranks_per_node if config.trainer.device == "cuda" else 0,
        min_free_gib=config.launcher.min_free_gib,
        token=secrets.token_hex(8),
    )
    needs.publish()
    environment = _environment(config, run_dir.name) | {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        NODES: ",".join(nodes),
        NEEDS: needs.to_json(),
    }
    start = f"restart {os.environ.get('SLURM_RESTART_COUNT', '0')} of job {os.environ['SLURM_JOB_ID']}"
    print(f"{task}: {len(nodes)} nodes x {job.ranks_per_node} ranks, {start}, head {nodes[0]} at {address}:{port}")
    print(f"run folder {run_dir}\n{plan_summary(task, config)}", flush=True)
    step = SlurmStep(
        nodes=tuple(nodes),
        ranks_per_node=job.ranks_per_node,
        logs_dir=job.logs_dir,
        start_timeout_s=config.launcher.start_timeout_s,
    )
    return run_supervised(srun_command(job, len(nodes)), environment, job.logs_dir, step.starter())


def _allocation(config: RunConfig) -> list[str]:
    """Nodes of the allocation this process runs in; raises ConfigError where there is none, or of another size."""
    if "SLURM_JOB_ID" not in os.environ:
        raise ConfigError(
            ["launcher=slurm: this is no Slurm allocation; use megatron-rl launch launcher=slurm ..., or salloc or sbatch"]
        )
    try:
        nodes = node_names(os.environ)
    except ValueError as failure:
        raise ConfigError([f"launcher=slurm: {failure}"]) from None
    if len(nodes) != config.trainer.nnodes:
        raise ConfigError([f"trainer.nnodes={config.trainer.nnodes}: the allocation has {len(nodes)} nodes; leave it out"])
    return nodes


def _head(config: RunConfig, nodes: list[str]) -> tuple[str, int]:
    """Address and port of rank 0, which runs on the first node, as this process does in a batch job."""
    launcher = config.launcher
    _require_free_port(launcher.master_port)
    try:
        port = launcher.master_port or port_of_job(int(os.environ["SLURM_JOB_ID"]))
        address = launcher.master_addr or os.environ.get("MASTER_ADDR")
        if address is None:
            here = os.environ.get("SLURMD_NODENAME") == nodes[0]
            address = head_address(nodes[0], is_this_machine=here) if len(nodes) > 1 else "127.0.0.1"
    except ValueError as failure:
        raise ConfigError([str(failure)]) from None
    return address, port


def _become_worker(task: str, config: RunConfig, module: str, launch: OutsideLaunch) -> int:
    run_dir = agree_on_run_folder(config, launch)
    command = [sys.executable, "-m", module, task, str(run_dir)]
    os.execve(sys.executable, command, _environment(config, run_dir.name))
