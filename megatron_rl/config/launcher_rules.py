"""Rules about starting ranks, and Slurm's way of writing a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from megatron_rl.config.run import RunConfig
from megatron_rl.config.world import Task

TASKS_THAT_SAVE: tuple[Task, ...] = ("train", "sft")
"""Tasks that leave at a step's end when told to, and go on from there."""
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?$")


def time_limit_s(limit: str | int) -> int:
    """Seconds of a time as sbatch reads it: ``90`` minutes, ``"1:30:00"``, ``"1-12"`` days and hours.

    Raises ValueError where it is none of these.
    """
    found = _TIME.match(str(limit).strip())
    if found is None:
        raise ValueError(f'{limit!r} is not a time; write minutes, "hours:minutes:seconds" or "days-hours:minutes:seconds"')
    first, second, third = (None if found[name] is None else int(found[name]) for name in ("first", "second", "third"))
    assert first is not None, "the expression matched"
    if found["days"] is not None:
        return int(found["days"]) * 86400 + first * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return first * 3600 + (second or 0) * 60 + third
    return first * 60 + (second or 0)


def launcher_problems(config: RunConfig, task: Task) -> Iterator[str]:
    """What cannot work about starting, stopping and starting again."""
    launcher, trainer = config.launcher, config.trainer
    if launcher.name == "local" and trainer.nnodes > 1:
        yield (
            f"trainer.nnodes={trainer.nnodes}: launcher=local starts the ranks of one machine; use launcher=slurm, or "
            "launcher=torchrun on every node"
        )
    if launcher.max_restarts and launcher.name == "slurm":
        yield f"launcher.max_restarts={launcher.max_restarts}: Slurm starts a job again through its queue; set launcher.requeue"
    if launcher.name == "slurm":
        yield from _slurm_problems(config, task)


def _slurm_problems(config: RunConfig, task: Task) -> Iterator[str]:
    launcher, trainer = config.launcher, config.trainer
    if launcher.requeue and task in TASKS_THAT_SAVE and trainer.save_freq <= 0:
        yield (
            f"trainer.save_freq={trainer.save_freq}: a job that goes back to the queue needs a checkpoint to go on from; set "
            "trainer.save_freq, or launcher.requeue=false"
        )
    for option in launcher.sbatch_options:
        if not option.startswith("-"):
            yield f"launcher.sbatch_options: {option} is no option of sbatch; they begin with a dash, as in --exclusive"
    if launcher.time_limit is None:
        return
    try:
        limit_s = time_limit_s(launcher.time_limit)
    except ValueError as failure:
        yield f"launcher.time_limit: {failure}"
        return
    if limit_s <= launcher.signal_lead_s:
        yield (
            f"launcher.signal_lead_s={launcher.signal_lead_s}: the job would be told to stop as soon as it starts; "
            f"launcher.time_limit={launcher.time_limit} is {limit_s} s"
        )
