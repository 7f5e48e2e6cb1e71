"""Memory of the fullest rank of a configured run, phase by phase."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.catalogue import GIB, Gpu
from megatron_rl.estimator.coefficients import process_memory
from megatron_rl.estimator.configured import deployment_of
from megatron_rl.estimator.fitted import fitted_coefficients
from megatron_rl.estimator.memory import ProcessMemory, phase_memory
from megatron_rl.estimator.memory_part import PhaseMemory

_ON_CPU = ProcessMemory(context_bytes=0, communicator_bytes=0, engine_bytes=0)


def rank_memory(
    config: RunConfig, world_size: int, *, on_gpu: bool, gpu: Gpu | None = None, fused_adam: bool = True
) -> tuple[PhaseMemory, ...]:
    """Estimate each phase of a training run whose layouts are valid.

    The KV cache counts as 0 where it is a share of a card of unknown size (``launcher.gpu_memory_gib`` null). On CPU the
    process itself is left out. ``gpu``: whose fixed costs to take; None = those of any measured card. ``fused_adam``: whether
    the GPUs' Adam is one kernel, as Transformer Engine's and NVIDIA Apex's are and torch's is not.
    """
    if not on_gpu:
        return phase_memory(deployment_of(config, world_size, on_gpu=False), _ON_CPU)
    decided = with_engine_sleep(config, world_size, config.launcher.gpu_memory_gib, gpu, fused_adam=fused_adam)
    return _on_gpu(decided, world_size, gpu, fused_adam)


def with_engine_sleep(
    config: RunConfig, world_size: int, card_gib: float | None, gpu: Gpu | None = None, *, fused_adam: bool = True
) -> RunConfig:
    """The configuration with ``rollout.free_cache_engine`` decided: null is true where a phase would not fit the card.

    ``card_gib``: memory of one card; None = not known, or on CPU, where the engine stays awake.
    """
    if config.rollout.free_cache_engine is not None:
        return config
    awake = _with_sleep(config, False)
    if card_gib is None:
        return awake
    launcher = config.launcher.model_copy(update={"gpu_memory_gib": card_gib})
    phases = _on_gpu(awake.model_copy(update={"launcher": launcher}), world_size, gpu, fused_adam)
    return _with_sleep(config, True) if any(phase.total_bytes > card_gib * GIB for phase in phases) else awake


def _with_sleep(config: RunConfig, sleeps: bool) -> RunConfig:
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"free_cache_engine": sleeps})})


def _on_gpu(config: RunConfig, world_size: int, gpu: Gpu | None, fused_adam: bool) -> tuple[PhaseMemory, ...]:
    process = process_memory(fitted_coefficients(gpu))
    return phase_memory(deployment_of(config, world_size, on_gpu=True, fused_adam=fused_adam), process)


def memory_table(phases: Sequence[PhaseMemory]) -> str:
    """Aligned text: the total of each phase, then the parts of the largest."""
    worst = max(phases, key=lambda phase: phase.total_bytes)
    rows: list[tuple[str, int]] = [(phase.phase, phase.total_bytes) for phase in phases]
    rows += [(f"  {worst.phase}: {part.role} {part.kind}", part.size_bytes) for part in worst.parts]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {size / GIB:8.3f} GiB" for name, size in rows)
