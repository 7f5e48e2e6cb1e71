"""What the estimator expects of the memory of a run's fullest rank, for explaining failures."""

from __future__ import annotations

from collections.abc import Mapping

from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.memory_part import Phase, PhaseMemory
from megatron_rl.estimator.rank_memory import rank_memory
from megatron_rl.training.optimizer import has_fused_adam

ESTIMATOR_PHASES: Mapping[str, Phase] = {
    "gen": "rollout",
    "testing": "rollout",
    "update_weights": "switch-over",
    "old_log_prob": "scoring",
    "ref": "scoring",
    "values": "scoring",
    "update_critic": "update critic",
    "update_actor": "update actor",
}
"""Phase of the step -> phase of the estimate."""


def planned_memory(config: RunConfig, world_size: int, card_gib: float | None) -> dict[Phase, PhaseMemory]:
    """Estimate by phase, with the Adam that is installed here.

    ``card_gib``: memory of one card, which gives the cache its size; None = on CPU.
    """
    launcher = config.launcher.model_copy(update={"gpu_memory_gib": card_gib})
    sized = config.model_copy(update={"launcher": launcher})
    phases = rank_memory(sized, world_size, on_gpu=card_gib is not None, fused_adam=has_fused_adam())
    return {phase.phase: phase for phase in phases}
