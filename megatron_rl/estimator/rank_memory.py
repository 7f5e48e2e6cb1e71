"""A first guess of the memory one rank needs, from shapes and degrees alone. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.parallel import ParallelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.config.world import data_degree
from megatron_rl.estimator.parameters import total_parameters

GIB = 1024**3
_ACTIVATION_BYTES_PER_TOKEN = 34
"""Times hidden size, per layer, 16-bit, without the attention matrix (Korthikanti et al. 2022, eq. 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One rank's memory by name and bytes. Example of a part: ``("actor optimizer", 5_391_360)``."""

    resident: tuple[tuple[str, int], ...]
    """There all the time."""
    passing: tuple[tuple[str, int], ...]
    """Needed in one phase of a step: rollout, actor update or critic update."""

    @property
    def parts(self) -> tuple[tuple[str, int], ...]:
        """All parts."""
        return self.resident + self.passing

    @property
    def least_bytes(self) -> int:
        """What is needed even where every phase frees all it can: the resident parts and the largest passing one."""
        return sum(size for _, size in self.resident) + max(size for _, size in self.passing)

    def table(self) -> str:
        """The parts as aligned text."""
        rows = [*self.parts, ("at least", self.least_bytes)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {size / GIB:8.3f} GiB" for name, size in rows)


def rank_memory(config: RunConfig, world_size: int, *, on_gpu: bool) -> RankMemory:
    """Guess the memory of the fullest rank of a training run.

    Weights count as spread evenly over tensor and pipeline ranks, whatever the expert-parallel degree.
    """
    weight_bytes = 2 if on_gpu and config.trainer.dtype != "float32" else 4
    parameters = total_parameters(config.model)
    roles: list[tuple[str, TrainedRoleConfig]] = [("actor", config.actor)]
    if config.uses_critic:
        roles.append(("critic", config.critic))
    resident = [part for name, role in roles for part in _state_parts(name, role, parameters, world_size, weight_bytes)]
    if config.uses_reference:
        share = _share(parameters, config.ref.parallel or config.actor.parallel)
        resident.append(("reference weights", share * weight_bytes))
    resident.append(("engine weights", parameters // config.rollout.tensor_parallel_size * weight_bytes))
    passing = [(f"{name} activations", _activation_bytes(role, config.model, weight_bytes)) for name, role in roles]
    passing.append(("engine KV cache", _kv_cache_bytes(config, on_gpu)))
    return RankMemory(resident=tuple(resident), passing=tuple(passing))


def _share(parameters: int, layout: ParallelConfig) -> int:
    return parameters // (layout.tensor * layout.pipeline)


def _state_parts(
    name: str, role: TrainedRoleConfig, parameters: int, world_size: int, weight_bytes: int
) -> list[tuple[str, int]]:
    share = _share(parameters, role.parallel)
    state_bytes = 8 if weight_bytes == 4 else 12  # two moments, and an f32 copy of 16-bit weights
    shards = max(1, data_degree(role.parallel, world_size)) if role.optim.use_distributed_optimizer else 1
    return [
        (f"{name} weights", share * weight_bytes),
        (f"{name} gradients", share * 4),
        (f"{name} optimizer", share * state_bytes // shards),
    ]


def _activation_bytes(role: TrainedRoleConfig, model: ModelConfig, weight_bytes: int) -> int:
    layers = model.num_layers // role.parallel.pipeline
    kept = 2 if role.recompute.granularity == "full" else _ACTIVATION_BYTES_PER_TOKEN
    elements = role.ppo_max_token_len_per_gpu * model.hidden_size * layers // role.parallel.tensor
    return elements * kept * weight_bytes // 2


def _kv_cache_bytes(config: RunConfig, on_gpu: bool) -> int:
    if config.rollout.kv_cache_gib is not None:
        return round(config.rollout.kv_cache_gib * GIB)
    if not on_gpu:
        return GIB
    card_gib = config.launcher.gpu_memory_gib
    if card_gib is None:
        return 0  # a share of a card of unknown size
    weights = total_parameters(config.model) // config.rollout.tensor_parallel_size * 2
    return max(0, round(card_gib * GIB * config.rollout.gpu_memory_utilization) - weights)
