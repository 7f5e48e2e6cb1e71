"""Profiling chosen steps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from megatron_rl.config.base import Section


class ProfilerConfig(Section):
    """Profiling: which tool watches which steps on which ranks."""

    tool: Literal["none", "torch", "nsys"] = Field(
        "none",
        description="torch = a trace and a table of operators in the run folder; nsys = start and stop a capture by nsys.",
    )
    steps: list[PositiveInt] = Field([3], description="Steps to profile; the first ones compile and warm up.")
    phases: list[str] = Field(
        [], description="Phases to profile, named as in timing_s/<phase>, for example [update_actor]; empty = whole steps."
    )
    ranks: list[NonNegativeInt] = Field([0], description="Global ranks that profile.")
    with_stack: bool = Field(False, description="torch: record Python call stacks; slow, large traces.")
