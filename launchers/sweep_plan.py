"""A sweep that can run: every point composed and validated, every problem of every point reported at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers.sweep_points import SweepPoint, batch_sizes, canonical, points_of, scaling_defaults, sweep_name
from launchers.sweep_spec import SweepSpec
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run import RunConfig
from megatron_rl.config.validate import validate
from megatron_rl.config.world import ranks_per_node

Compose = Callable[[Sequence[str]], RunConfig]
"""Overrides -> configuration; raises ConfigError."""
SLURM_GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What this machine can run."""

    num_gpus: int
    num_processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPoint:
    """A point that has passed validation."""

    point: SweepPoint
    config: RunConfig
    num_ranks: int
    runs: bool
    """False = more than this host can run: model output only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Everything a sweep needs to start."""

    spec: SweepSpec
    folder: Path
    """``trainer.output_dir/<sweep>``: one folder per point below it."""
    points: tuple[PlannedPoint, ...]


def plan_sweep(spec: SweepSpec, compose: Compose, host: Host) -> SweepPlan:
    """Compose and validate every point; nothing is written.

    Raises:
        ConfigError: every problem of every point, each named; or points that are the same run in other words.
    """
    batches: Mapping[str, int | None] = {}
    gpus_per_node = spec.gpus_per_node
    if spec.kind == "scaling":
        base = compose([*scaling_defaults(spec.overrides), *map(canonical, spec.overrides)])
        batches = batch_sizes(base.model_dump())
        gpus_per_node = gpus_per_node or (SLURM_GPUS_PER_NODE if base.launcher.name == "slurm" else None)
    planned: list[PlannedPoint] = []
    problems: dict[str, list[str]] = {}
    points = points_of(spec, batches, gpus_per_node)
    for point in points:
        try:
            planned.append(_checked(point, spec, compose, host))
        except ConfigError as failure:
            problems[point.name] = list(failure.problems)
    if problems:
        raise ConfigError(_by_point(problems, len(points)))
    same = _same_runs(planned)
    if same:
        raise ConfigError(same)
    first = planned[0].config.trainer
    return SweepPlan(spec=spec, folder=(Path(first.output_dir) / sweep_name(spec)).absolute(), points=tuple(planned))


def _checked(point: SweepPoint, spec: SweepSpec, compose: Compose, host: Host) -> PlannedPoint:
    config = compose(point.overrides)
    on_gpu = config.trainer.device == "cuda" or (config.trainer.device == "auto" and host.num_gpus > 0)
    num_ranks = ranks_per_node(config, host.num_gpus if on_gpu else 0) * config.trainer.nnodes
    beyond = _beyond_this_host(config, num_ranks, on_gpu, host, spec.estimate)
    problems = [beyond] if beyond is not None and not spec.estimate else []
    # What is only modelled needs no files and may use features that are not trained yet.
    modelled = beyond is not None and spec.estimate
    problems += validate(config, task="plan" if modelled else "train", world_size=num_ranks, num_gpus=host.num_gpus)
    steps = config.trainer.total_training_steps
    if steps is not None and steps <= spec.warmup_steps:
        problems.append(
            f"trainer.total_training_steps={steps}: no step is left to measure after warmup_steps={spec.warmup_steps}"
        )
    if problems:
        raise ConfigError(problems)
    return PlannedPoint(point=point, config=config, num_ranks=num_ranks, runs=beyond is None)


def _beyond_this_host(config: RunConfig, num_ranks: int, on_gpu: bool, host: Host, estimate: bool) -> str | None:
    """Why this machine cannot run the point; None where it can, or where another will.

    CPU ranks may share processors, so only a sweep with a model beside it leaves the larger points to the model.
    """
    if config.launcher.name == "slurm":
        return None
    advice = "use launcher=slurm, or estimate=true for model output"
    if config.trainer.nnodes > 1:
        return f"trainer.nnodes={config.trainer.nnodes}: this command starts the ranks of one machine; {advice}"
    if on_gpu and num_ranks > host.num_gpus:
        return f"{num_ranks} GPUs: this machine shows {host.num_gpus}; {advice}"
    if not on_gpu and estimate and num_ranks > host.num_processors:
        return f"{num_ranks} ranks: this machine has {host.num_processors} processors"
    return None


def _same_runs(planned: Sequence[PlannedPoint]) -> list[str]:
    """Points whose values are written in different ways and mean the same, as 1e-6 and 1.0e-6 do."""
    first_of: dict[str, str] = {}
    problems = []
    for one in planned:
        unnamed = one.config.trainer.model_copy(update={"experiment_name": ""})
        name = first_of.setdefault(one.config.model_copy(update={"trainer": unnamed}).model_dump_json(), one.point.name)
        if name != one.point.name:
            problems.append(f"{one.point.name}: the same run as {name}; every point needs a value of its own")
    return problems


def _by_point(problems: Mapping[str, Sequence[str]], num_points: int) -> list[str]:
    """One message per point and problem; what all points have in common once."""
    everywhere = {
        message
        for messages in problems.values()
        for message in messages
        if num_points > 1 and sum(message in other for other in problems.values()) == num_points
    }
    shared = [
        f"every point: {message}"
        for message in dict.fromkeys(m for ms in problems.values() for m in ms)
        if message in everywhere
    ]
    own = [f"{name}: {message}" for name, messages in problems.items() for message in messages if message not in everywhere]
    return shared + own
