"""What a sweep is asked to do: one typed value, from a command line or from a YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from megatron_rl.config import typing_errors
from megatron_rl.config.base import Section
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.schema import SchemaKey, section_keys

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


class SweepSpec(Section):
    """A sweep. Example: ``SweepSpec(kind="scaling", gpus=[1, 2, 4], overrides=["experiment=tiny_cpu"])``."""

    kind: Literal["scaling", "grid"] = Field(
        description="scaling = the same run on more and more GPUs; grid = every combination of parameters."
    )
    name: str | None = Field(None, description="Folder below trainer.output_dir, and trackers' project; null = from the axes.")
    gpus: list[PositiveInt] = Field([], description="scaling: GPUs (on a CPU, ranks) of each point.")
    mode: Literal["strong", "weak"] = Field(
        "strong", description="scaling: strong = the same batch for every point; weak = a batch that grows with the GPUs."
    )
    gpus_per_node: PositiveInt | None = Field(
        None, description="scaling: a point with more spreads over nodes; null = 8 under Slurm, elsewhere one node."
    )
    parameters: dict[str, list[Any]] = Field({}, description="grid: configuration key -> values.")
    overrides: list[str] = Field([], description="Configuration overrides of every point.")
    warmup_steps: NonNegativeInt = Field(1, description="First steps of each attempt that no statistic counts.")
    price_per_hour: NonNegativeFloat | None = Field(None, description="USD per GPU hour; null = no cost columns.")
    retry: bool = Field(False, description="Run points again that have failed.")
    estimate: bool = Field(False, description="Model output for every point; those that this host cannot run are not run.")
    gpu: str | None = Field(None, description="estimate: card that the model assumes, for example H200-141GB.")
    prompt_tokens: PositiveInt | None = Field(None, description="estimate: mean; null = as measured, else the maximum.")
    response_tokens: PositiveInt | None = Field(None, description="estimate: mean; null = as measured, else the maximum.")


OWN_KEYS = {
    "trainer.project_name": "name=",
    "trainer.experiment_name": "name=, the points' names follow from what varies",
}
SCALING_KEYS = {"trainer.nnodes": "gpus= and gpus_per_node=", "trainer.n_gpus_per_node": "gpus= and gpus_per_node="}
"""Configuration keys that a sweep sets itself -> what to use instead."""
SHARED_KEYS = frozenset({"trainer.output_dir", "launcher", "launcher.name"})


def spec_keys() -> dict[str, SchemaKey]:
    """Keys of a sweep by name."""
    return {key.dotted: key for key in section_keys(SweepSpec)}


def spec_of(content: Mapping[str, Any], source: str = "sweep") -> SweepSpec:
    """Typed sweep of ``source``. Raises ConfigError with every problem."""
    try:
        spec = SweepSpec.model_validate(dict(content))
    except ValidationError as failure:
        raise ConfigError([f"{source}: {problem}" for problem in typing_errors.messages(failure, spec_keys())]) from None
    problems = [f"{source}: {problem}" for problem in _problems(spec)]
    if problems:
        raise ConfigError(problems)
    return spec


def read_content(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, not yet typed. Raises ConfigError naming the file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise ConfigError([f"--config {path}: cannot read it: {failure.strerror}"]) from None
    except yaml.YAMLError as failure:
        raise ConfigError([f"--config {path}: not YAML: {' '.join(str(failure).split())}"]) from None
    known = isinstance(content, dict) and isinstance(content.get("parameters", {}), dict)
    if not known or not isinstance(content.get("overrides", []), list):
        raise ConfigError([f"--config {path}: expected kind, gpus or parameters (a mapping), and overrides (a list)"])
    return {str(key): value for key, value in content.items()}


def _problems(spec: SweepSpec) -> Iterator[str]:
    if spec.name is not None and not _SAFE_NAME.fullmatch(spec.name):
        yield f"name={spec.name}: a folder name of letters, digits, '.', '_', '+' and '-', please"
    if spec.kind == "scaling":
        if not spec.gpus:
            yield "gpus: required but not set; for example gpus=1,2,4"
        if spec.parameters:
            yield f"{', '.join(spec.parameters)}: a scaling sweep varies gpus alone; use sweep grid for other keys"
    else:
        if not spec.parameters:
            yield "nothing to vary; give a key several values, for example rollout.n=4,8"
        if spec.gpus:
            yield "gpus belongs to a scaling sweep; in a grid vary trainer.n_gpus_per_node"
    for key, values in [("gpus", spec.gpus), *spec.parameters.items()]:
        twice = [value for i, value in enumerate(values) if value in values[:i]]
        if twice:
            yield f"{key}: {twice[0]} is given twice; every point needs a value of its own"
        if not values and key != "gpus":
            yield f"{key}: no values"
    reserved = OWN_KEYS | (SCALING_KEYS if spec.kind == "scaling" else {})
    for key in [*(override.partition("=")[0].lstrip("+") for override in spec.overrides), *spec.parameters]:
        if key in reserved:
            yield f"{key}: the sweep sets it; use {reserved[key]}"
    for key in SHARED_KEYS & spec.parameters.keys():
        yield f"{key}: the points of a sweep share it; give it one value"
    if spec.estimate and spec.gpu is None:
        yield "estimate=true needs gpu=<card>, the card that the model assumes; for example gpu=H200-141GB"
