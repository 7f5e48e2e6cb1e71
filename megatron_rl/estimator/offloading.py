"""Steps of a ladder: what leaves the GPU while it is not in use, from nothing to the optimizer for good."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from megatron_rl.estimator.deployment import Deployment, EngineSetup, RoleSetup

Offload = Literal["none", "sleep", "swap", "host_optimizer"]
"""``none``: nothing. ``sleep``: the engine's cache and its own weights, outside of the rollout. ``swap``: also gradients and
optimizer states outside of their role's update, and weights of critic and reference. ``host_optimizer``: the optimizer for
good."""
OFFLOADS: tuple[Offload, ...] = ("none", "sleep", "swap", "host_optimizer")
TRAINABLE_OFFLOADS: tuple[Offload, ...] = ("none", "sleep", "swap")
"""What the trainer of this version can do."""


def offloaded_role(role: RoleSetup, offload: Offload) -> RoleSetup:
    """The role on that step of the ladder. The actor's weights stay: the engine reads them."""
    if offload in ("none", "sleep"):
        return role
    moved = replace(role, gradients="own_phase", optimizer="never" if offload == "host_optimizer" else "own_phase")
    return moved if role.name == "actor" else replace(moved, weights="own_phase")


def offloaded_engine(engine: EngineSetup, offload: Offload) -> EngineSetup:
    """The engine on that step of the ladder."""
    return replace(engine, sleeps=offload != "none")


def offload_of(deployment: Deployment) -> Offload:
    """The lowest step that moves at least what the deployment moves."""
    residencies = [role.optimizer for role in deployment.roles if role.trained]
    if "never" in residencies:
        return "host_optimizer"
    moved = [r for role in deployment.roles for r in (role.weights, role.gradients, role.optimizer)]
    if "own_phase" in moved:
        return "swap"
    return "sleep" if deployment.engine is not None and deployment.engine.sleeps else "none"


def offload_overrides(deployment: Deployment) -> list[str]:
    """What to type for it."""
    engine = deployment.engine
    overrides = ["rollout.free_cache_engine=true"] if engine is not None and engine.sleeps else []
    for role in deployment.roles:
        key = "ref" if role.name == "reference" else role.name
        overrides += [f"{key}.param_offload=true"] if role.weights == "own_phase" else []
        if role.trained:
            overrides += [f"{key}.grad_offload=true"] if role.gradients == "own_phase" else []
            overrides += [f"{key}.optimizer_offload=true"] if role.optimizer == "own_phase" else []
    return overrides
