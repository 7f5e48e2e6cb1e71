"""What a job is about to use, for its log: ranks, memory of the fullest rank, and what its time limit can cost."""

from __future__ import annotations

from megatron_rl.config.cluster import LauncherConfig
from megatron_rl.config.launcher_rules import time_limit_s
from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.rank_memory import memory_table, rank_memory


def plan_summary(task: str, config: RunConfig) -> str:
    """Lines for a configuration whose world is known; memory is estimated for training only."""
    trainer = config.trainer
    assert trainer.n_gpus_per_node is not None, "the world is known by now"
    world_size = trainer.nnodes * trainer.n_gpus_per_node
    on_gpu = trainer.device == "cuda"
    lines = [f"plan: {task} {config.model.name} on {world_size} {'GPUs' if on_gpu else 'CPU ranks'}"]
    if config.launcher.time_limit is not None:
        lines.append(_cost_limit(config.launcher, world_size, "GPU hours" if on_gpu else "rank hours"))
    if task == "train":
        memory = rank_memory(config, world_size, on_gpu=on_gpu)
        lines.append(f"memory of the fullest rank, estimated\n{memory_table(memory)}")
    return "\n".join(lines)


def _cost_limit(launcher: LauncherConfig, world_size: int, unit: str) -> str:
    """What the job can cost at most."""
    assert launcher.time_limit is not None
    hours = time_limit_s(launcher.time_limit) / 3600
    spent = hours * world_size
    price = launcher.price_per_hour
    money = "" if price is None else f", {spent * price:,.2f} USD at {price:g} an hour,"
    return f"cost: at most {spent:.1f} {unit}{money} until the time limit of {hours:.2f} h"
