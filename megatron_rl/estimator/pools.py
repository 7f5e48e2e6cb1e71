"""Which cards there are and who lives on them, from ``gpu``, ``num_gpus`` and ``device_map``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.spelling import nearest_choice
from megatron_rl.estimator.catalogue import Gpu, abbreviates, find_gpu
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
        gpu: card of every role the map leaves out, and what its short name means in the map: beside A100-40GB, A100 is that.
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
    default = device_map.get("actor", gpu)
    wanted = {role: _cards(device_map.get(role, default), role if role in device_map else "", gpu) for role in roles}
    kinds = list(dict.fromkeys(wanted.values()))
    return tuple(
        Pool(
            gpu=card,
            num_gpus=count or _even_share(num_gpus, len(kinds)),
            roles=tuple(role for role in roles if wanted[role] == (card, count)),
        )
        for card, count in kinds
    )


_WITHOUT_CARDS = {
    "reward": "rewards are functions on the host's processors",
    "rollout": "the engine shares the actor's cards",
    "engine": "the engine shares the actor's cards",
}
"""What somebody may look for in a device map, and why it is not there."""


def _check_roles(device_map: Mapping[str, str], roles: tuple[RoleName, ...]) -> None:
    for role in device_map:
        if role in _WITHOUT_CARDS:
            raise ConfigError([f"device_map.{role}: {_WITHOUT_CARDS[role]}; leave {role} out"])
        if role not in ("actor", "critic", "reference"):
            close = nearest_choice(role, ("actor", "critic", "reference"))
            advice = f" (did you mean {close}?)" if close else ""
            raise ConfigError([f"device_map.{role}: no such role{advice}; roles are actor, critic, reference"])
        if role not in roles:
            raise ConfigError([f"device_map.{role}: this algorithm uses {', '.join(roles)} only; leave {role} out"])


def _cards(text: str, mapped_role: str, gpu: str) -> tuple[Gpu, int]:
    """Card and count of ``A100`` or ``4xA100``; 0 where there is no count."""
    counted = _COUNTED.match(text)
    name = counted[2] if counted else text
    key = f"device_map.{mapped_role}" if mapped_role else "gpu"
    return find_gpu(gpu if abbreviates(name, gpu) else name, key), int(counted[1]) if counted else 0


def _even_share(num_gpus: int, num_kinds: int) -> int:
    if num_gpus % num_kinds:
        raise ConfigError(
            [f"num_gpus={num_gpus} does not split over the {num_kinds} kinds of device_map; say how many, as in actor: 4xH100"]
        )
    return num_gpus // num_kinds
