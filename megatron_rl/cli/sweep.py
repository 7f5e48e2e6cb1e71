"""``megatron-rl sweep scaling|grid|results|--config FILE``: many runs, one folder, one table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from launchers.environment import num_visible_gpus
from launchers.submit import launch_task
from launchers.sweep import Started, run_sweep
from launchers.sweep_plan import Host, PlannedPoint, SweepPlan, plan_sweep
from launchers.sweep_points import ALIASES, split_values
from launchers.sweep_spec import SweepSpec, read_content, spec_keys, spec_of
from megatron_rl.cli.compose import compose_run
from megatron_rl.cli.own_keys import split_own_keys, take_flag, take_option
from megatron_rl.cli.sweep_slurm import require_scripts, submit_point
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.spelling import nearest_choice

USAGE = """\
usage: megatron-rl sweep scaling gpus=1,2,4 [mode=strong|weak] [key=value ...]
       megatron-rl sweep grid KEY=VALUE,VALUE ... [key=value ...]
       megatron-rl sweep --config FILE.yaml [key=value ...]
       megatron-rl sweep results SWEEP_DIR

  name                folder of the sweep below trainer.output_dir
  gpus_per_node       a point with more GPUs takes several nodes (one node; 8 under Slurm)
  warmup_steps        first steps that no statistic counts (1)
  price_per_hour      USD per GPU hour, for the cost columns
  retry=true          run failed points again; finished ones are never run twice
  estimate=true       model output for every point on gpu=CARD; those beyond this host are only modelled
  prompt_tokens, response_tokens   mean lengths that the model assumes (as measured, else the maxima)
  --dry-run           show the points and stop

Every configuration key works as in train; a grid varies those with several values. rollout.batch_size means
data.train_batch_size. docs/sweeps.md has the columns."""
DRY_RUN = "--dry-run"
CONFIG = "--config"
_NOT_TYPED = ("kind", "parameters", "overrides")


def run(argv: list[str]) -> int:
    """Run a sweep; returns 0, or 1 where points have failed.

    Raises:
        ConfigError: every problem of every point, before anything is started.
    """
    dry_run, arguments = take_flag(DRY_RUN, argv)
    file, arguments = take_option(CONFIG, arguments, "a sweep file, --config sweep.yaml")
    if file is not None:
        return run_sweep_file(Path(file), arguments, dry_run)
    if not arguments:
        print(USAGE)
        return 0
    kind, *rest = arguments
    if kind == "results":
        return _results(rest)
    if kind not in ("scaling", "grid"):
        close = nearest_choice(kind, ("scaling", "grid", "results", CONFIG))
        advice = f"did you mean {close}?" if close else "choose scaling, grid, results or --config FILE"
        raise ConfigError([f"sweep {kind}: no such kind of sweep; {advice}"])
    return _run(spec_of(typed_content(kind, rest)), dry_run)


def run_sweep_file(path: Path, extra_overrides: Sequence[str] = (), dry_run: bool = False) -> int:
    """Run the sweep of a YAML file; ``extra_overrides`` are what a command line would hold, and win.

    Raises:
        ConfigError: as :func:`run`.
    """
    content = read_content(path)
    if "kind" not in content:
        raise ConfigError([f"{path}: kind: required but not set; kind: scaling, or kind: grid"])
    typed = typed_content(str(content["kind"]), extra_overrides)
    merged = {**content, **typed}
    merged["overrides"] = [*content.get("overrides", []), *typed["overrides"]]
    merged["parameters"] = {**content.get("parameters", {}), **typed["parameters"]}
    return _run(spec_of(merged, source=str(path)), dry_run)


def typed_content(kind: str, arguments: Sequence[str]) -> dict[str, Any]:
    """A command line as the content of a sweep file. Raises ConfigError for keys that are neither's."""
    own, rest = split_own_keys(arguments, [key for key in spec_keys() if key not in _NOT_TYPED], (DRY_RUN, CONFIG))
    content: dict[str, Any] = {"kind": kind, "parameters": {}, "overrides": []}
    content |= {key: _own_value(key, value) for key, value in own.items()}
    for argument in rest:
        key, _, value = argument.partition("=")
        values = split_values(value)
        if kind == "grid" and len(values) > 1:
            content["parameters"][ALIASES.get(key, key)] = values
        else:
            content["overrides"].append(argument)
    return content


def _own_value(key: str, text: str) -> Any:
    if key in ("name", "mode", "gpu"):
        return text
    if key == "gpus":
        return [int(value) if value.isdecimal() else value for value in split_values(text.strip("[]"))]
    return yaml.safe_load(text)


def _run(spec: SweepSpec, dry_run: bool) -> int:
    if "RANK" in os.environ:
        raise ConfigError(["sweep: RANK is set, so this is one rank of a job; a sweep starts its jobs itself"])
    plan = plan_sweep(spec, compose_run, this_host())
    queued = plan.points[0].config.launcher.name == "slurm" and "SLURM_JOB_ID" not in os.environ
    scripts = require_scripts(plan, submits=not dry_run) if queued else []
    print(f"sweep of {len(plan.points)} points in {plan.folder}", flush=True)
    if dry_run:
        _print_points(plan)
        for script in scripts:
            print(f"\n# {script.path}\n{script.text}", end="")
        return 0
    code = run_sweep(plan, submit_point if queued else start_point)
    show(plan.folder)
    return code


def show(folder: Path) -> int:
    """Write and print a sweep's results; returns 1 where a point has failed."""
    # Tables, pictures and the estimator load only now: a typo is answered without them.
    from megatron_rl.cli.sweep_results import show_results

    return show_results(folder, compose_run)


def this_host() -> Host:
    """GPUs and processors of this machine."""
    return Host(num_gpus=num_visible_gpus(os.environ), num_processors=os.cpu_count() or 1)


def start_point(planned: PlannedPoint) -> Started:
    """Run one point to its end, on this machine or in this allocation."""
    return Started(exit_code=launch_task("train", planned.config))


def _print_points(plan: SweepPlan) -> None:
    for planned in plan.points:
        where = "" if planned.runs else ", model output only"
        print(f"  {planned.point.name}: {planned.num_ranks} ranks{where}\n    {' '.join(planned.point.overrides)}")


def _results(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        raise ConfigError(["sweep results: give the sweep's folder, the one with sweep.json"])
    return show(Path(arguments[0]))
