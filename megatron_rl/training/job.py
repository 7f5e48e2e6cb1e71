"""The job a process belongs to: what it computes on and whom it can talk to."""

from __future__ import annotations

import os
import platform as platform_module
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from megatron_rl.config.parallel import ParallelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.observability.logger import MetricLogger, build_logger
from megatron_rl.parallel.from_config import engine_layout, role_layout
from megatron_rl.parallel.groups import GroupRegistry
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.parallel.rank_order import RankOrder
from megatron_rl.runtime.platform import Platform, init_distributed
from megatron_rl.runtime.random_states import seed_everything
from megatron_rl.runtime.roll_call import prove_collectives


@dataclass(frozen=True)
class Job:
    """One process of a run, joined to the others."""

    config: RunConfig
    run_dir: Path
    platform: Platform
    registry: GroupRegistry
    host_group: ProcessGroup
    """All ranks over gloo: carries CPU tensors and objects also where the compute backend is NCCL."""
    engine_order: RankOrder | None = None
    """Rank order of the engines where it is not the natural one."""

    @classmethod
    def join(cls, config: RunConfig, run_dir: Path) -> Job:
        """Choose the device, join the process group, seed, prove that ranks reach each other.

        Collectives: all ranks of the job.
        """
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        platform = Platform.detect(config.trainer.device, config.trainer.dtype, local_rank)
        patience_s = config.launcher.rendezvous_timeout_s
        init_distributed(platform, config.trainer.collective_timeout_s, rendezvous_timeout_s=patience_s)
        seed_everything(config.trainer.seed)
        host_group = dist.new_group(backend="gloo")
        prove_collectives(platform.device, host_group, patience_s, os.environ)
        return cls(config, run_dir, platform, GroupRegistry(), host_group)

    @property
    def rank(self) -> int:
        """Global rank."""
        return dist.get_rank()

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return dist.get_world_size()

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files and speaks."""
        return self.rank == 0

    @property
    def device_name(self) -> str:
        """What this rank computes on, for people."""
        on_cuda = self.platform.device.type == "cuda"
        return torch.cuda.get_device_name(self.platform.device) if on_cuda else platform_module.processor() or "CPU"

    def say(self, text: str) -> None:
        """Print a line once for the whole job."""
        if self.is_main:
            print(text, flush=True)

    @property
    def rollout_layout(self) -> RolloutLayout:
        """TP x DP grid of the engines."""
        return replace(engine_layout(self.config.rollout, self.world_size), order=self.engine_order)

    def layout(self, parallel: ParallelConfig) -> ParallelLayout:
        """A role's layout over the whole job, in natural rank order."""
        return role_layout(parallel, self.world_size)

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node: ``i`` and ``j`` do where ``i // ranks_per_node == j // ranks_per_node``."""
        return self.config.trainer.n_gpus_per_node or self.world_size // self.config.trainer.nnodes


def open_logger(job: Job, console_every: int = 1) -> MetricLogger:
    """The run's metric sinks, which write on rank 0 only; the console gets every ``console_every``-th step."""
    config = job.config
    return build_logger(
        config.trainer,
        job.run_dir,
        rank=job.rank,
        run_config=config.model_dump(mode="json"),
        console_every=console_every,
    )
