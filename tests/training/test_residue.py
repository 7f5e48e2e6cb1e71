"""Nothing accumulates over the steps: what a role holds after a step is what it held after the steps before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.config.training import OptimConfig, TrainedRoleConfig
from megatron_rl.parallel.groups import GroupRegistry
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform, init_distributed
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.memory_phases import Holding, MemoryPhases
from megatron_rl.training.offload import FreedGradients, HostSwap, optimizer_tensors
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import PolicyLossForTest

STEPS = 20
PHASES = ("gen", "old_log_prob", "update_actor", "update_weights")


@pytest.fixture
def role() -> Iterator[MegatronRole]:
    init_distributed(Platform.detect(), 60, {})
    config = TrainedRoleConfig(optim=OptimConfig(lr=1e-3), ppo_max_token_len_per_gpu=64)
    model, platform = tiny_model(num_layers=2), Platform.detect()
    # What lives by now lives on: looking at everything ever imported would take seconds a look.
    gc.freeze()
    yield MegatronRole.build(model, config, ParallelLayout(), GroupRegistry(), platform, total_optimizer_steps=STEPS)
    gc.unfreeze()
    dist.destroy_process_group()


def held_bytes(device: torch.device) -> int:
    """Bytes of all living tensors: by the allocator on a GPU, by looking at every object on a CPU."""
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in gc.get_objects() if isinstance(x, Tensor)}
    return sum(storage.nbytes() for storage in storages.values())


def residues(role: MegatronRole, steps: int, leak: list[Tensor] | None = None) -> dict[str, list[int]]:
    """Bytes held after each phase, step by step; ``leak`` gets a tensor a step."""
    assert role.optimizer is not None
    state = HostSwap(partial(optimizer_tensors, role))
    memory = MemoryPhases([Holding("actor gradients", FreedGradients(role.optimizer)), Holding("actor optimizer", state)])
    held: dict[str, list[int]] = {phase: [] for phase in PHASES}
    for step in range(steps):
        for phase in PHASES:
            memory.enter(phase)
            if phase == "old_log_prob":
                scores = role.score(ragged_batch(seed=step))
                if leak is not None:
                    leak.append(scores[0])
            if phase == "update_actor":
                role.update(ragged_batch(seed=step), PolicyLossForTest())
            scores = None
            held[phase].append(held_bytes(role.platform.device))
    return held


def test_held_memory_is_flat_over_20_steps_in_every_phase(role: MegatronRole) -> None:
    held = residues(role, STEPS)
    for phase, sizes in held.items():
        # A scalar may live until the next step; what accumulates raises the least of the later steps.
        assert min(sizes[10:]) <= min(sizes[2:10]), f"{phase}: {sizes}"
    # An f32 model's moments and gradients are three times its weights.
    weights = sum(parameter.numel() * 4 for parameter in role.parameters.values())
    assert held["update_actor"][-1] - held["old_log_prob"][-1] >= (3 if role.platform.device.type == "cuda" else 1) * weights


def test_a_leak_is_seen(role: MegatronRole) -> None:
    sizes = residues(role, 5, leak=[])["update_weights"]
    assert sizes[-1] > sizes[2]
