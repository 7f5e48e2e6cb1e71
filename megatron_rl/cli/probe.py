"""``megatron-rl probe num_train_steps=100 ...``: a few steps of a run, what they took, and what the whole will take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from launchers.submit import launch_task
from megatron_rl.cli.compose import compose_run
from megatron_rl.cli.own_keys import split_own_keys
from megatron_rl.config import typing_errors
from megatron_rl.config.base import Section
from megatron_rl.config.batch_arithmetic import batch_arithmetic
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.group_filter_rules import group_filter_problems
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import experiment_dir
from megatron_rl.config.schema import section_keys

USAGE = """\
usage: megatron-rl probe [num_train_steps=100] [key=value ...]

  num_train_steps     steps to run (100)
  warmup_steps        first steps that no statistic counts (1)
  price_per_hour      USD per GPU hour, for the cost of the whole run
  max_hours           above it the run is too slow
  measurements        JSON file that the measurement is added to (trainer.output_dir/measurements.json)

Every configuration key works as in train, and describes the whole run. Exit code 1: the probe says no to something."""

MEASUREMENTS_FILE = "measurements.json"


class ProbeSpec(Section):
    """A probe's own keys."""

    num_train_steps: PositiveInt = Field(100, description="Steps to run.")
    warmup_steps: NonNegativeInt = Field(1, description="First steps that no statistic counts.")
    price_per_hour: NonNegativeFloat | None = Field(None, description="USD per GPU hour; null = no cost.")
    max_hours: PositiveFloat | None = Field(None, description="Longest acceptable run; null = not judged.")
    measurements: str | None = Field(None, description="File that the measurement is added to; null = in output_dir.")


@dataclass(frozen=True)
class Probe:
    """A probe that can start."""

    spec: ProbeSpec
    config: RunConfig
    """Of the probe."""
    total_steps: int
    """Of the whole run."""

    @property
    def measurements(self) -> Path:
        """Where the measurement goes."""
        given = self.spec.measurements
        return Path(self.config.trainer.output_dir) / MEASUREMENTS_FILE if given is None else Path(given)


def run(argv: list[str]) -> int:
    """Probe a run; returns the exit code of a run that failed, 1 where the verdict holds a "no", else 0.

    Raises:
        ConfigError: every problem, before anything is started.
    """
    if not argv:
        print(USAGE)
        return 0
    probe = plan_probe(argv)
    code = launch_task("train", probe.config)
    # Loaded only now: a typo is answered without the estimator and the tables.
    from megatron_rl.cli.probe_results import show_failure, show_probe

    run_dir = (experiment_dir(probe.config) / "latest").resolve()
    if code != 0:
        show_failure(run_dir)
        return code
    return show_probe(probe, run_dir)


def plan_probe(argv: Sequence[str]) -> Probe:
    """Split and compose a probe's command line. Raises ConfigError with every problem of spelling."""
    if "RANK" in os.environ:
        raise ConfigError(["probe: RANK is set, so this is one rank of a job; a probe starts its ranks itself"])
    spec, overrides = _split(argv)
    whole = compose_run(overrides)
    if problems := list(group_filter_problems(whole)):
        raise ConfigError(problems)  # The probe sets its own number of steps, which would hide that the run has none.
    if spec.num_train_steps <= spec.warmup_steps:
        raise ConfigError(
            [f"num_train_steps={spec.num_train_steps}: no step is left to measure after warmup_steps={spec.warmup_steps}"]
        )
    total_steps = whole.trainer.total_training_steps or whole.trainer.total_epochs * _steps_per_epoch(whole)
    own = {
        "trainer.total_training_steps": spec.num_train_steps,
        "trainer.experiment_name": f"{whole.trainer.experiment_name}_probe",
        "trainer.resume_mode": "disable",
        "trainer.save_freq": -1,
        "trainer.save_hf_at_end": "false",
        "trainer.test_freq": -1,
        "trainer.val_before_train": "false",
        "trainer.val_at_end": "false",
        **_schedule_of(whole, total_steps),
    }
    config = compose_run([*overrides, *(f"{key}={value}" for key, value in own.items())])
    probe = Probe(spec, config, total_steps)
    _require_room_for_a_measurement(probe.measurements)
    return probe


def _require_room_for_a_measurement(path: Path) -> None:
    """Raise ConfigError where the file that the measurement goes to holds something else or cannot be written."""
    if path.exists():
        from megatron_rl.estimator.measurements import read_records

        read_records(path)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError([f"measurements={path}: cannot write in {folder}"])


def _schedule_of(whole: RunConfig, total_steps: int) -> dict[str, int]:
    """Learning rates that fall over the whole run, not over the probe."""
    roles = {"actor": whole.actor, "critic": whole.critic}
    steps = {role.role: role.optimizer_steps for role in batch_arithmetic(whole, 1).roles}
    return {
        f"{name}.optim.lr_decay_steps": total_steps * steps[name]
        for name, role in roles.items()
        if name in steps and role.optim.lr_decay_style != "constant" and role.optim.lr_decay_steps is None
    }


def _steps_per_epoch(config: RunConfig) -> int:
    """Whole batches in the training prompts, which are read and rendered for it. Raises ConfigError where they cannot be."""
    from megatron_rl.data.prompts import load_prompts, tokenizer_of

    try:
        prompts = load_prompts(config.data, tokenizer_of(config.model), "train").prompts
    except ValueError as failure:
        raise ConfigError([str(failure)]) from None
    return max(1, len(prompts) // config.data.train_batch_size)


def _split(argv: Sequence[str]) -> tuple[ProbeSpec, list[str]]:
    keys = {key.dotted: key for key in section_keys(ProbeSpec)}
    typed, overrides = split_own_keys(argv, keys)
    own = {key: value if key == "measurements" else yaml.safe_load(value) for key, value in typed.items()}
    try:
        return ProbeSpec.model_validate(own), overrides
    except ValidationError as failure:
        raise ConfigError([f"probe: {problem}" for problem in typing_errors.messages(failure, keys)]) from None
