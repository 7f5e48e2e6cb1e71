"""One role to and from Megatron's distributed checkpoint, readable on any other TP / PP / DP layout."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer

from megatron_rl.models.gpt import TransformerStage
from megatron_rl.training.master_weights import prime_fused_adam, whole_master_weights
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.optimizer_leaves import leaf_optimizers


def save_role(role: MegatronRole, folder: Path) -> None:
    """Write weights, and for a trained role moments, master weights and schedule.

    Each data-parallel rank gathers the optimizer state of its model shard in host memory (12 bytes a parameter).

    Collectives: all ranks of the job. ``folder`` must exist and be empty.
    """
    with _results_stay_in_process():
        dist_checkpointing.save(_state(role, loading=False), str(folder), content_metadata={"format": "megatron_rl"})


def load_role(role: MegatronRole, folder: Path, *, with_optimizer: bool) -> None:
    """Fill a role from a checkpoint of any layout.

    Args:
        role: built, its weights are overwritten in place.
        folder: as written by ``save_role``.
        with_optimizer: also restore moments, master weights and schedule.

    Collectives: all ranks of the job.
    """
    state = dist_checkpointing.load(_state(role, loading=True, with_optimizer=with_optimizer), str(folder))
    for key, chunk in _keyed_chunks(role).items():
        chunk.load_state_dict(state[key])
    if not with_optimizer:
        role.weights_changed()
        return
    assert role.optimizer is not None
    with _loads_without_step(role.optimizer.megatron), whole_master_weights(role.optimizer.megatron):
        role.optimizer.megatron.load_state_dict(state["optimizer"])
    _separate_steps(role.optimizer.megatron)
    role.optimizer.load_state_dict(state["schedule"])


def _keyed_chunks(role: MegatronRole) -> dict[str, TransformerStage]:
    """Chunks under the names Megatron's optimizer expects: ``model``, or ``model0``, ``model1`` when interleaved."""
    if len(role.chunks) == 1:
        return {"model": role.chunks[0]}
    return {f"model{index}": chunk for index, chunk in enumerate(role.chunks)}


def _state(role: MegatronRole, *, loading: bool, with_optimizer: bool = True) -> ShardedStateDict:
    metadata = {
        # The only format that loads on another TP and PP.
        "distrib_optim_sharding_type": "fully_reshardable",
        "chained_optim_avoid_prefix": True,
        "dp_cp_group": role.groups.collection.dp_cp,
    }
    with role.groups.as_megatron_globals():
        model: dict[str, Any] = {key: chunk.sharded_state_dict(metadata=metadata) for key, chunk in _keyed_chunks(role).items()}
        state = dict(model)
        if role.optimizer is not None and with_optimizer:
            _prime(role.optimizer.megatron)
            prime_fused_adam(role.optimizer.megatron)
            with whole_master_weights(role.optimizer.megatron):
                state["optimizer"] = role.optimizer.megatron.sharded_state_dict(
                    model["model"] if "model" in model else model, is_loading=loading, metadata=metadata
                )
            state["schedule"] = role.optimizer.state_dict()
    return state


@contextmanager
def _results_stay_in_process() -> Iterator[None]:
    """Collect write results through an ordinary queue.

    Saving is synchronous here, but Megatron would still start a server process for its queue: seconds at each run's
    first save, a process to clean up after a crash, and a hang where the main script cannot be imported again.
    """
    previous = filesystem_async._results_queue
    filesystem_async._results_queue = queue.Queue()
    try:
        yield
    finally:
        filesystem_async._results_queue = previous


def _torch_adams(optimizer: MegatronOptimizer) -> Iterator[torch.optim.Optimizer]:
    """Inner optimizers that are torch's own Adam (fused ones keep no step per parameter)."""
    for leaf in leaf_optimizers(optimizer):
        if isinstance(leaf.optimizer, (torch.optim.Adam, torch.optim.AdamW)):
            yield leaf.optimizer


def _prime(optimizer: MegatronOptimizer) -> None:
    """Give torch's Adam its state before the first step: Megatron reads one common step from it, and fails on none."""
    for adam in _torch_adams(optimizer):
        for group in adam.param_groups:
            for parameter in group["params"]:
                if not adam.state[parameter]:
                    adam.state[parameter] = {
                        "step": torch.tensor(0.0),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }


@contextmanager
def _loads_without_step(optimizer: MegatronOptimizer) -> Iterator[None]:
    """Let Megatron set a parameter's state although the saved state has no ``step`` (it is saved once per group)."""
    patched = [leaf for leaf in leaf_optimizers(optimizer) if isinstance(leaf, DistributedOptimizer)]
    for leaf in patched:
        setter = leaf._set_main_param_and_optimizer_states
        leaf._set_main_param_and_optimizer_states = lambda parameter, tensors, setter=setter: setter(
            parameter, {"step": None, **tensors}
        )
    try:
        yield
    finally:
        for leaf in patched:
            del leaf._set_main_param_and_optimizer_states


def _separate_steps(optimizer: MegatronOptimizer) -> None:
    """Undo Megatron's sharing of one step tensor by all parameters: Adam would advance it once for each of them."""
    for adam in _torch_adams(optimizer):
        for state in adam.state.values():
            state["step"] = state["step"].detach().clone()
