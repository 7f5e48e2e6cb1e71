"""How many ranks a run needs, and every degree that follows from that number. Plain integers, no torch.

Each role covers the whole world: ``tensor * context * pipeline * data = world``; the engines ``tensor * data = world``.
"""

from __future__ import annotations

from math import lcm
from typing import Literal

from megatron_rl.config.parallel import ParallelConfig
from megatron_rl.config.run import RunConfig

Task = Literal["train", "sft", "generate", "evaluate", "convert", "plan"]
"""What the ranks do; ``plan`` asks about the layouts of training and starts none."""
TASKS_WITH_ENGINE: tuple[Task, ...] = ("train", "generate", "evaluate", "plan")
TASKS_WITH_ALL_ROLES: tuple[Task, ...] = ("train", "plan")
_LARGEST_HEALTHY_MISMATCH = {"float32": 1e-4, "bfloat16": 0.05}
"""Mean |trainer - engine log-prob| by compute dtype, nats: an error of 1 % in one layer must show in f32."""


def block_size(parallel: ParallelConfig) -> int:
    """Ranks of one model replica."""
    return parallel.tensor * parallel.context * parallel.pipeline


def role_layouts(config: RunConfig, task: Task = "train") -> dict[str, ParallelConfig]:
    """Role -> layout, for the Megatron roles that the task builds."""
    layouts = {"actor": config.actor.parallel}
    if task in TASKS_WITH_ALL_ROLES and config.uses_critic:
        layouts["critic"] = config.critic.parallel
    if task in TASKS_WITH_ALL_ROLES and config.uses_reference:
        layouts["ref"] = config.ref.parallel or config.actor.parallel
    return layouts


def required_ranks(config: RunConfig, task: Task = "train") -> dict[str, int]:
    """Role -> number of ranks it fixes, or whose multiples it accepts while its data degree is null."""
    needs = {role: _role_ranks(layout) for role, layout in role_layouts(config, task).items()}
    if task in TASKS_WITH_ENGINE:
        needs["rollout"] = config.rollout.tensor_parallel_size * (config.rollout.data_parallel_size or 1)
    return needs


def _role_ranks(layout: ParallelConfig) -> int:
    if layout.data is not None:
        return block_size(layout) * layout.data
    experts = layout.expert * (layout.expert_tensor or layout.tensor) if layout.expert > 1 else 1
    return layout.pipeline * lcm(layout.tensor * layout.context, experts)


def smallest_world(config: RunConfig, task: Task = "train") -> int:
    """Fewest ranks on which every role fits."""
    return lcm(*required_ranks(config, task).values())


def ranks_per_node(config: RunConfig, num_gpus: int, task: Task = "train") -> int:
    """Ranks of each node: what is configured, else one per GPU, else the fewest the layouts need."""
    if config.trainer.n_gpus_per_node is not None:
        return config.trainer.n_gpus_per_node
    if num_gpus > 0 and config.trainer.device != "cpu":
        return num_gpus
    return -(-smallest_world(config, task) // config.trainer.nnodes)


def data_degree(parallel: ParallelConfig, world_size: int) -> int:
    """Data-parallel replicas of a role that covers the world."""
    return parallel.data if parallel.data is not None else world_size // block_size(parallel)


def with_world(config: RunConfig, world_size: int, num_gpus: int) -> RunConfig:
    """The configuration with every value that follows from the machine filled in; it must have passed validation."""

    def filled(parallel: ParallelConfig) -> ParallelConfig:
        # A role that this task does not build may not fit the world; its degree then stays open.
        fits = world_size % block_size(parallel) == 0
        return parallel.model_copy(update={"data": data_degree(parallel, world_size)}) if fits else parallel

    rollout, trainer = config.rollout, config.trainer
    device = ("cuda" if num_gpus > 0 else "cpu") if trainer.device == "auto" else trainer.device
    dtype = ("bfloat16" if device == "cuda" else "float32") if trainer.dtype == "auto" else trainer.dtype
    return config.model_copy(
        update={
            "actor": config.actor.model_copy(update={"parallel": filled(config.actor.parallel)}),
            "critic": config.critic.model_copy(update={"parallel": filled(config.critic.parallel)}),
            "ref": config.ref.model_copy(update={"parallel": filled(config.ref.parallel or config.actor.parallel)}),
            "rollout": rollout.model_copy(
                update={
                    "data_parallel_size": rollout.data_parallel_size or world_size // rollout.tensor_parallel_size or None,
                    "max_model_len": max_model_len(config),
                    "mismatch_warn_threshold": rollout.mismatch_warn_threshold or _LARGEST_HEALTHY_MISMATCH[dtype],
                }
            ),
            "trainer": trainer.model_copy(
                update={"n_gpus_per_node": world_size // trainer.nnodes, "device": device, "dtype": dtype}
            ),
        }
    )


def for_cluster_nodes(config: RunConfig) -> RunConfig:
    """The configuration as a cluster sees it: where ``trainer.device`` is auto its nodes have GPUs, whatever this host has."""
    trainer = config.trainer
    if trainer.device != "auto":
        return config
    dtype = "bfloat16" if trainer.dtype == "auto" else trainer.dtype
    return config.model_copy(update={"trainer": trainer.model_copy(update={"device": "cuda", "dtype": dtype})})


def max_model_len(config: RunConfig) -> int:
    """Longest prompt + response the engine is built for, tokens."""
    return config.rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
