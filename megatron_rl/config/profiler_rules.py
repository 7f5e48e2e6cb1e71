"""Rules about profiling."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_rl.config.run import RunConfig


def profiler_problems(config: RunConfig, world_size: int) -> Iterator[str]:
    """A profile that would never be written."""
    profiler = config.profiler
    if profiler.tool == "none":
        return
    absent = [rank for rank in profiler.ranks if rank >= world_size]
    if absent:
        yield f"profiler.ranks={profiler.ranks}: the world has ranks 0 to {world_size - 1} only; leave {absent} out"
    if profiler.tool == "nsys" and config.trainer.device == "cpu":
        yield "profiler.tool=nsys watches GPUs, and trainer.device=cpu has none; use profiler.tool=torch"
    last = config.trainer.total_training_steps
    if last is not None and profiler.steps and min(profiler.steps) > last:
        yield (
            f"profiler.steps={profiler.steps}: the run ends after trainer.total_training_steps={last}; "
            f"choose steps up to {last}"
        )
