"""From a task's name to its code, with every rank leaving together."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import torch.distributed as dist

from megatron_rl.config.run import RunConfig
from megatron_rl.observability.environment import write_environment
from megatron_rl.training.job import Job

TASKS = {
    "train": "megatron_rl.training.rl:train",
    "sft": "megatron_rl.training.sft:fine_tune",
    "generate": "megatron_rl.training.generation:generate",
    "evaluate": "megatron_rl.training.generation:evaluate",
    "convert": "megatron_rl.training.conversion:convert",
}
"""Imported on demand: fine-tuning and conversion need no vLLM, whose import alone takes seconds."""


def run_task(task: str, config: RunConfig, run_dir: Path) -> int:
    """Join the job, run the task, leave; returns the exit code. Collectives: all ranks of the job."""
    module, _, function = TASKS[task].partition(":")
    job = Job.join(config, run_dir)
    if job.is_main:
        write_environment(run_dir, {"device": job.device_name, "world_size": job.world_size})
    code = int(getattr(import_module(module), function)(job))
    dist.barrier(job.host_group)
    dist.destroy_process_group()
    return code
