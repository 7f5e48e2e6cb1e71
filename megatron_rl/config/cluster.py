"""How processes are started."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from megatron_rl.config.base import Section


class LauncherConfig(Section):
    """Starting the ranks."""

    name: Literal["local", "torchrun", "slurm"] = Field(
        "local",
        description="local = torchrun here; torchrun = the same command on every node; slurm = srun in an allocation.",
    )
    master_addr: str | None = Field(None, description="Rendezvous host; null = this machine, under Slurm the first node.")
    master_port: int | None = Field(
        None, ge=1, le=65535, description="Rendezvous port; null = a free one, under Slurm chosen by job id."
    )
    node_rank: int | None = Field(
        None, ge=0, description="torchrun: number of this node, 0 is master_addr; null = NODE_RANK, GROUP_RANK or SLURM_NODEID."
    )
    max_restarts: int = Field(
        0, ge=0, description="torchrun: times that ranks are started again after a failure, from the newest checkpoint."
    )
    start_timeout_s: PositiveInt = Field(
        45, description="A node that has not started its processes by then ends the job by name, seconds."
    )
    rendezvous_timeout_s: PositiveInt = Field(
        300, description="Ranks or nodes that have not come to the rendezvous by then are named and end the job, seconds."
    )
    min_free_gib: NonNegativeFloat = Field(1.0, description="Free space a node needs in the run folder and in /tmp, GiB.")
    gpu_memory_gib: PositiveFloat | None = Field(
        None, description="Memory of one card, GiB; megatron-rl check then refuses what cannot fit. null = not compared."
    )
    price_per_hour: NonNegativeFloat | None = Field(
        None, description="USD per GPU hour; the pre-flight then says what a time limit can cost. null = GPU hours only."
    )
    partition: str | None = Field(None, description="slurm: partition; null = the cluster's default.")
    account: str | None = Field(None, description="slurm: account; null = the user's default.")
    cpus_per_rank: PositiveInt | None = Field(
        None, description="slurm: cores of each rank; null = the cluster's default, usually one."
    )
    time_limit: PositiveInt | str | None = Field(
        None, description='slurm: minutes, "hours:minutes:seconds" or "days-hours:minutes:seconds"; null = the partition\'s.'
    )
    signal_lead_s: PositiveInt = Field(
        300, description="slurm: the job is told to save this long before the time limit, seconds; a step plus a save must fit."
    )
    requeue: bool = Field(True, description="slurm: go back to the queue after a save on a signal, and after a node failure.")
    sbatch_options: list[str] = Field([], description='slurm: more options of sbatch, such as "--constraint=h200".')
