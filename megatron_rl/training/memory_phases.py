"""Who holds GPU memory in which phase of the step.

Trainer and engine share the card. The engine wants its KV cache while it samples, a role its gradients and optimizer state
while it learns, and never both at once. Each phase says what it needs; what it does not need and may move leaves when the
phase begins, then what it needs comes back. The actor's weights stay where they are: the engine reads them in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.rollout.engine import MemoryTag, RolloutEngine
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.offload import FreedGradients, HostSwap, optimizer_tensors, parameter_tensors


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be on the GPU in a phase. What may move and is not named leaves it."""

    holdings: frozenset[str] = frozenset()
    """Of the roles, by name: ``"actor optimizer"``."""
    engine: frozenset[MemoryTag] | None = frozenset()
    """Parts of the engine that are awake; None = as they are."""


_SAMPLING = Needs(engine=frozenset({"weights", "kv_cache"}))

PHASE_NEEDS: Mapping[str, Needs] = {
    "gen": _SAMPLING,
    "testing": _SAMPLING,
    "old_log_prob": Needs(),
    "ref": Needs(frozenset({"ref parameters"})),
    "values": Needs(frozenset({"critic parameters"})),
    "update_critic": Needs(frozenset({"critic parameters", "critic gradients", "critic optimizer"})),
    "update_actor": Needs(frozenset({"actor gradients", "actor optimizer"})),
    "update_weights": Needs(engine=frozenset({"weights"})),
    "abandon": Needs(),
    "resume": Needs(),
    "actor state": Needs(frozenset({"actor optimizer"}), engine=None),
    "critic state": Needs(frozenset({"critic parameters", "critic optimizer"}), engine=None),
    "check_replicas": Needs(frozenset({"critic parameters"}), engine=None),
}
"""Phases that are not listed take things as they are. Inside ``save_checkpoint`` and ``resume`` come the roles' ``state``."""


class Movable(Protocol):
    """Something that can leave the GPU."""

    def offload(self) -> None:
        """Give the memory up."""

    def load(self) -> None:
        """Take it back."""


@dataclass(slots=True)
class Holding:
    """A movable with its name. Example: ``Holding("actor optimizer", HostSwap(...))``."""

    name: str
    movable: Movable
    on_device: bool = True


class MemoryPhases:
    """Moves holdings and engine as the phases ask."""

    def __init__(self, holdings: Sequence[Holding] = ()) -> None:
        """Let ``holdings``, which are on the device, move."""
        self._holdings = list(holdings)
        self._engine: RolloutEngine | None = None
        self._awake: frozenset[MemoryTag] = frozenset({"weights", "kv_cache"})

    def adopt(self, holdings: Sequence[Holding]) -> None:
        """Let these move as well; they leave at once, so that the next role to be built finds room."""
        self._holdings += holdings
        self.enter("gen")

    def adopt_engine(self, engine: RolloutEngine) -> None:
        """From now on let ``engine``, which is awake, sleep where it is not needed."""
        self._engine = engine

    def moves(self, phase: str) -> bool:
        """Whether entering ``phase`` now moves anything."""
        needs = PHASE_NEEDS.get(phase)
        if needs is None:
            return False
        return self._wanted(needs) != self._awake or any(held.on_device != self._stays(held, needs) for held in self._holdings)

    def enter(self, phase: str) -> None:
        """Make what ``phase`` needs available. Tensor-parallel ranks of one engine enter the same phases."""
        needs = PHASE_NEEDS.get(phase)
        if needs is None:
            return
        awake = self._wanted(needs)
        self._sleep_unless(awake)
        leaving = [held for held in self._holdings if held.on_device and not self._stays(held, needs)]
        for held in leaving:
            held.movable.offload()
            held.on_device = False
        if leaving:
            # The engine's pool takes its memory from the driver, where torch's unused blocks do not count as free.
            torch.cuda.empty_cache()
        for held in self._holdings:
            if not held.on_device and self._stays(held, needs):
                held.movable.load()
                held.on_device = True
        self._wake(awake)

    @staticmethod
    def _stays(held: Holding, needs: Needs) -> bool:
        return held.name in needs.holdings

    def _wanted(self, needs: Needs) -> frozenset[MemoryTag]:
        return self._awake if self._engine is None or needs.engine is None else needs.engine

    def _sleep_unless(self, awake: frozenset[MemoryTag]) -> None:
        if self._engine is not None and not self._awake <= awake:
            # Level 2 drops weights of the engine's own. It sleeps only when training begins, and a push ends training.
            self._engine.sleep(2)
            self._awake = frozenset()

    def _wake(self, awake: frozenset[MemoryTag]) -> None:
        if self._engine is not None and awake != self._awake:
            self._engine.wake(sorted(awake - self._awake, reverse=True))
            self._awake = awake


def trained_holdings(name: str, role: MegatronRole, config: TrainedRoleConfig, *, parameters: bool = False) -> list[Holding]:
    """What of a trained role may move, as configured; ``parameters`` only where no engine reads them in place."""
    assert role.optimizer is not None
    found = [Holding(f"{name} parameters", HostSwap(partial(parameter_tensors, role)))] if parameters else []
    if config.grad_offload:
        found.append(Holding(f"{name} gradients", FreedGradients(role.optimizer)))
    if config.optimizer_offload:
        found.append(Holding(f"{name} optimizer", HostSwap(partial(optimizer_tensors, role))))
    return found


def frozen_holdings(name: str, role: MegatronRole) -> list[Holding]:
    """The weights of a role that only scores."""
    return [Holding(f"{name} parameters", HostSwap(partial(parameter_tensors, role)))]
