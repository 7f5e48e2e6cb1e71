"""Memory of the fullest rank of a configured run, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.catalogue import GIB as GIB
from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.coefficients import process_memory
from megatron_rl.estimator.configured import deployment_of
from megatron_rl.estimator.fitted import fitted_coefficients
from megatron_rl.estimator.memory import ProcessMemory, phase_memory
from megatron_rl.estimator.memory_part import PhaseMemory

_ON_CPU = ProcessMemory(context_bytes=0, communicator_bytes=0, engine_bytes=0)


def rank_memory(config: RunConfig, world_size: int, *, on_gpu: bool, gpu: Gpu | None = None) -> tuple[PhaseMemory, ...]:
    """Estimate each phase of a training run whose layouts are valid.

    The KV cache counts as 0 where it is a share of a card of unknown size (``launcher.gpu_memory_gib`` null). On CPU the
    process itself is left out. ``gpu``: whose fixed costs to take; None = those of any measured card.
    """
    process = process_memory(fitted_coefficients(gpu)) if on_gpu else _ON_CPU
    return phase_memory(deployment_of(config, world_size, on_gpu=on_gpu), process)


def memory_table(phases: Sequence[PhaseMemory]) -> str:
    """Aligned text: the total of each phase, then the parts of the largest."""
    worst = max(phases, key=lambda phase: phase.total_bytes)
    rows: list[tuple[str, int]] = [(phase.phase, phase.total_bytes) for phase in phases]
    rows += [(f"  {worst.phase}: {part.role} {part.kind}", part.size_bytes) for part in worst.parts]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {size / GIB:8.3f} GiB" for name, size in rows)
