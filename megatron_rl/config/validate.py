"""Rules across sections: every broken one is found at once, before a model, an engine or torch is loaded."""

from __future__ import annotations

from megatron_rl.config.batch_arithmetic import batch_problems
from megatron_rl.config.file_rules import file_problems
from megatron_rl.config.group_filter_rules import group_filter_problems
from megatron_rl.config.launcher_rules import launcher_problems
from megatron_rl.config.layout_rules import layout_problems, unbuilt_problems
from megatron_rl.config.logprob_reuse import reuse_problems
from megatron_rl.config.method_rules import algorithm_problems, device_problems, sampling_problems, schedule_problems
from megatron_rl.config.profiler_rules import profiler_problems
from megatron_rl.config.run import RunConfig
from megatron_rl.config.world import TASKS_WITH_ENGINE, Task, ranks_per_node


def validate(config: RunConfig, *, task: Task = "train", world_size: int | None = None, num_gpus: int = 0) -> list[str]:
    """Every problem of a configuration; empty where there is none.

    Args:
        config: typed configuration.
        task: what is to be run; ``plan`` skips what concerns files and features that are not trained yet.
        world_size: ranks of the job; None = what ``trainer`` says, else what ``num_gpus`` or the layouts suggest.
        num_gpus: GPUs of each node; 0 = ``trainer.device=auto`` means CPU.
    """
    world = world_size if world_size is not None else ranks_per_node(config, num_gpus, task) * config.trainer.nnodes
    problems = list(layout_problems(config, task, world))
    if task != "plan":
        problems += unbuilt_problems(config, task)
    if task == "train":
        problems += batch_problems(config, world)
        problems += algorithm_problems(config)
        problems += group_filter_problems(config)
        problems += schedule_problems(config)
        problems += reuse_problems(config)
        problems += profiler_problems(config, world)
    if task in TASKS_WITH_ENGINE:
        problems += sampling_problems(config)
    if task in TASKS_WITH_ENGINE and task != "plan":
        problems += device_problems(config, num_gpus)
    if task != "plan":
        problems += file_problems(config, task)
        problems += launcher_problems(config, task)
    return problems


def notes(config: RunConfig) -> list[str]:
    """Settings that are allowed but surprise people; printed at the start."""
    found = []
    roles = {"actor": config.actor.parallel} | ({"critic": config.critic.parallel} if config.uses_critic else {})
    for role, layout in roles.items():
        if (layout.virtual_pipeline or 1) > 1 and layout.pipeline == 2:
            found.append(f"{role}.parallel.virtual_pipeline with pipeline=2: stages exchange without overlap")
    if config.critic.enable and config.algorithm.adv_estimator != "gae":
        found.append(f"critic.enable=true: algorithm.adv_estimator={config.algorithm.adv_estimator} does not read its values")
    if config.trainer.save_freq == -1 and not config.trainer.save_hf_at_end:
        found.append("trainer.save_freq=-1 and trainer.save_hf_at_end=false: this run leaves no weights behind")
    return found
