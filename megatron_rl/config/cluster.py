"""How processes are started."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from megatron_rl.config.base import Section


class LauncherConfig(Section):
    """Starting the ranks."""

    name: Literal["local", "torchrun"] = Field("local", description="local = start the ranks of this machine with torchrun.")
    master_addr: str | None = Field(None, description="Rendezvous host; null = this machine.")
    master_port: int | None = Field(None, ge=1, le=65535, description="Rendezvous port; null = a free one.")
    gpu_memory_gib: PositiveFloat | None = Field(
        None, description="Memory of one card, GiB; megatron-rl check then refuses what cannot fit. null = not compared."
    )
