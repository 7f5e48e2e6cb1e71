"""Which cards there are and who lives on them, from ``gpu``, ``num_gpus`` and ``device_map``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.spelling import nearest_choice
from megatron_rl.estimator.catalogue import find_gpu
from megatron_rl.estimator.deployment import RoleName, Workload
from megatron_rl.estimator.strategies import Pool

_COUNTED = re.compile(r"^([1-9]\d*)\s*x\s*(.+)$")


def roles_of(workload: Workload) -> tuple[RoleName, ...]:
    """Megatron roles that a step uses."""
    roles: list[RoleName] = ["actor"]
    roles += ["critic"] if workload.uses_critic else []
    roles += ["reference"] if workload.uses_reference else []
    return tuple(roles)


def make_pools(gpu: str, num_gpus: int, device_map: Mapping[str, str], workload: Workload) -> tuple[Pool, ...]:
    """Pools of equal cards; roles that the map leaves out live with the actor, as does the engine.

    Args:
        gpu: card of every role the map leaves out.
        num_gpus: cards altogether, split evenly over the kinds of the map, or of the one pool.
        device_map: role -> card, or "4 x card" to say how many.
        workload: which roles there are.

    Raises:
        ConfigError: an unknown role or card, a role the algorithm does not use, or cards that do not split evenly.
    """
    roles = roles_of(workload)
    _check_roles(device_map, roles)
    if not gpu and "actor" not in device_map:
        raise ConfigError(["gpu: required but not set, as device_map does not say where the actor lives"])
    wanted = {role: device_map.get(role, device_map.get("actor", gpu)) for role in roles}
    kinds = list(dict.fromkeys(wanted.values()))
    counts = {kind: _count(kind, num_gpus, len(kinds)) for kind in kinds}
    return tuple(
        Pool(
            gpu=find_gpu(_card(kind), "device_map" if device_map else "gpu"),
            num_gpus=counts[kind],
            roles=tuple(role for role in roles if wanted[role] == kind),
        )
        for kind in kinds
    )


def _check_roles(device_map: Mapping[str, str], roles: tuple[RoleName, ...]) -> None:
    for role in device_map:
        if role not in ("actor", "critic", "reference"):
            close = nearest_choice(role, ("actor", "critic", "reference"))
            advice = f" (did you mean {close}?)" if close else ""
            raise ConfigError([f"device_map.{role}: no such role{advice}; roles are actor, critic, reference"])
        if role not in roles:
            raise ConfigError([f"device_map.{role}: this algorithm uses {', '.join(roles)} only; leave {role} out"])


def _card(kind: str) -> str:
    counted = _COUNTED.match(kind)
    return counted[2] if counted else kind


def _count(kind: str, num_gpus: int, num_kinds: int) -> int:
    counted = _COUNTED.match(kind)
    if counted:
        return int(counted[1])
    if num_gpus % num_kinds:
        raise ConfigError(
            [f"num_gpus={num_gpus} does not split over the {num_kinds} kinds of device_map; say how many, as in actor: 4xH100"]
        )
    return num_gpus // num_kinds
