"""The points of a sweep: names and overrides. Pure: nothing is composed, nothing is started."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from launchers.sweep_spec import SweepSpec
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.render import scalar_text

ALIASES = {"rollout.batch_size": "data.train_batch_size"}
"""Names that a sweep accepts for a configuration key."""
SCALING_DEFAULTS = {
    "trainer.total_training_steps": "10",
    "trainer.val_before_train": "false",
    "trainer.val_at_end": "false",
    "trainer.save_hf_at_end": "false",
}
MAX_VALUE_CHARS = 40
"""Of a value in a point's name."""
_BATCH_KEYS = ("data.train_batch_size", "actor.ppo_mini_batch_size", "critic.ppo_mini_batch_size")
"""What grows with the GPUs in weak scaling: the batch and, where set, the part of it that one optimizer step takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One run. Example: ``SweepPoint(name="n_4", settings={"rollout.n": "4"}, overrides=("experiment=x", "rollout.n=4"))``."""

    name: str
    """Folder of the point, and ``trainer.experiment_name``."""
    settings: Mapping[str, str]
    """What distinguishes it from the other points, as written."""
    overrides: tuple[str, ...]
    """Everything that is composed, in order."""


def sweep_name(spec: SweepSpec) -> str:
    """The given name, else one that says what varies."""
    if spec.name is not None:
        return spec.name
    if spec.kind == "scaling":
        return f"scaling_{spec.mode}"
    return "grid_" + "_".join(short_keys(list(spec.parameters)).values())


def canonical(override: str) -> str:
    """An override with a sweep's alias replaced."""
    key, equals, value = override.partition("=")
    return f"{ALIASES.get(key, key)}{equals}{value}"


def points_of(spec: SweepSpec, batches: Mapping[str, int | None], gpus_per_node: int | None) -> list[SweepPoint]:
    """Every point, in order.

    Args:
        spec: the sweep.
        batches: batch sizes of the common configuration by dotted key, None where unset; read by weak scaling, where they
            belong to the smallest point.
        gpus_per_node: a scaling point with more GPUs takes several nodes; None = one node of any size.

    Raises:
        ConfigError: GPUs that do not fill nodes, or a batch that does not stay whole.
    """
    shared = (*map(canonical, spec.overrides), f"trainer.project_name={sweep_name(spec)}")
    if spec.kind == "scaling":
        shared = (*scaling_defaults(spec.overrides), *shared)
        varied = _scaling(spec, batches, gpus_per_node)
    else:
        varied = _grid({ALIASES.get(key, key): values for key, values in spec.parameters.items()})
    return [
        SweepPoint(name=name, settings=settings, overrides=(*shared, *extra, f"trainer.experiment_name={name}"))
        for name, settings, extra in varied
    ]


def batch_sizes(dump: Mapping[str, Any]) -> dict[str, int | None]:
    """The batch sizes of a dumped configuration, by dotted key."""
    found = {}
    for dotted in _BATCH_KEYS:
        section, _, name = dotted.partition(".")
        found[dotted] = dump[section][name]
    return found


def scaling_defaults(overrides: Sequence[str]) -> tuple[str, ...]:
    """What a scaling sweep sets unless the user does: short runs of nothing but steps."""
    typed = {override.partition("=")[0].lstrip("+") for override in overrides}
    return tuple(f"{key}={value}" for key, value in SCALING_DEFAULTS.items() if key not in typed)


Varied = list[tuple[str, dict[str, str], tuple[str, ...]]]


def _scaling(spec: SweepSpec, batches: Mapping[str, int | None], gpus_per_node: int | None) -> Varied:
    smallest, problems, varied = min(spec.gpus), [], []
    for gpus in sorted(spec.gpus):
        per_node = gpus if gpus_per_node is None or gpus <= gpus_per_node else gpus_per_node
        if gpus % per_node:
            problems.append(f"gpus={gpus}: does not fill nodes of gpus_per_node={per_node}; use multiples of it above it")
        world = (f"trainer.nnodes={gpus // per_node}", f"trainer.n_gpus_per_node={per_node}")
        grown: list[str] = []
        for key, size in batches.items() if spec.mode == "weak" else ():
            if size is not None and size * gpus % smallest:
                problems.append(f"gpus={gpus}: mode=weak makes {key}={size} * {gpus}/{smallest}, which is no whole number")
            elif size is not None:
                grown.append(f"{key}={size * gpus // smallest}")
        varied.append((f"gpus_{gpus}", {"gpus": str(gpus)}, (*world, *grown)))
    if problems:
        raise ConfigError(problems)
    return varied


def _grid(parameters: Mapping[str, Sequence[Any]]) -> Varied:
    labels = short_keys(list(parameters))
    varied: Varied = []
    for combination in product(*parameters.values()):
        settings = {key: _text(value) for key, value in zip(parameters, combination, strict=True)}
        name = "-".join(f"{labels[key]}_{_in_a_name(text)}" for key, text in settings.items())
        varied.append((name, settings, tuple(f"{key}={text}" for key, text in settings.items())))
    return _told_apart(varied)


def _told_apart(varied: Varied) -> Varied:
    """Number the points whose names came out equal, from 1."""
    names = [name for name, _, _ in varied]
    seen: dict[str, int] = {}
    unique: Varied = []
    for name, settings, extra in varied:
        seen[name] = seen.get(name, 0) + 1
        unique.append((name if names.count(name) == 1 else f"{name}_no{seen[name]}", settings, extra))
    return unique


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Shortest endings that tell the keys apart: ``actor.optim.lr`` -> ``lr``, beside the critic's ``actor_optim_lr``."""
    short = {}
    for key in keys:
        parts = key.split(".")
        endings = [".".join(parts[-length:]) for length in range(1, len(parts) + 1)]
        alone = (end for end in endings if sum(f".{other}".endswith(f".{end}") for other in keys) == 1)
        short[key] = next(alone, key).replace(".", "_")
    return short


def split_values(text: str) -> list[str]:
    """Values between commas that lie outside of brackets and quotes. Example: ``[1,2],"a,b"`` -> ``[1,2]`` and ``"a,b"``."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += (character in "[{(") - (character in "]})") if not quote else 0
        if character == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += character
    return [value.strip() for value in values]


def _text(value: Any) -> str:
    """A value as an override; text from a command line stays as it was typed."""
    return value if isinstance(value, str) else scalar_text(value)


def _in_a_name(text: str) -> str:
    """Letters, digits, dot, plus, minus and underscores in single file."""
    plain = text
    if text.startswith('"') and text.endswith('"'):
        plain = str(json.loads(text))
    return re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9.+-]", "_", plain)).strip("_")[-MAX_VALUE_CHARS:] or "empty"
