"""One folder per attempt: made by one process, found by all ranks."""

from __future__ import annotations

import time
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from launchers.environment import OutsideLaunch
from megatron_rl.config.atomic_files import replace_link, write_atomically
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import CONFIG_JSON, LATEST, experiment_dir, write_run_config


def create_run_folder(config: RunConfig, now: datetime | None = None) -> Path:
    """Make a new folder ``<time>-<random>`` with the configuration in it, and point ``latest`` at it."""
    parent = experiment_dir(config)
    moment = (now or datetime.now()).strftime("%Y%m%d-%H%M%S")
    run_dir = parent / f"{moment}-{token_hex(3)}"
    try:
        run_dir.mkdir(parents=True)
    except OSError as failure:
        raise ConfigError([f"trainer.output_dir={config.trainer.output_dir}: cannot make {run_dir}: {failure}"]) from None
    write_run_config(config, run_dir)
    replace_link(parent / LATEST, run_dir.name)
    return run_dir


def agree_on_run_folder(config: RunConfig, launch: OutsideLaunch, timeout_s: float = 120.0) -> Path:
    """The folder rank 0 made for this attempt; ranks meet in a file named after the attempt, on the shared file system.

    Raises:
        ConfigError: rank 0 did not publish a folder in time, or runs another configuration.
    """
    meeting = experiment_dir(config) / ".attempts" / sha256(launch.attempt.encode()).hexdigest()[:16]
    if launch.rank == 0:
        run_dir = create_run_folder(config)
        meeting.parent.mkdir(exist_ok=True)
        write_atomically(meeting, run_dir.name)
        return run_dir
    deadline = time.monotonic() + timeout_s
    while not meeting.exists():
        if time.monotonic() > deadline:
            raise ConfigError(
                [
                    f"trainer.output_dir={config.trainer.output_dir}: rank {launch.rank} waited {timeout_s:.0f} s for rank 0 "
                    "to make the run folder there; it must be one folder that all nodes share"
                ]
            )
        time.sleep(0.05)
    run_dir = experiment_dir(config) / meeting.read_text()
    require_same_config(config, run_dir, f"rank {launch.rank}", "rank 0")
    return run_dir


def require_same_config(config: RunConfig, run_dir: Path, who: str, maker: str) -> None:
    """Raise ConfigError where ``run_dir`` is not there, or ``maker`` left another configuration in it."""
    try:
        theirs = (run_dir / CONFIG_JSON).read_text()
    except OSError as failure:
        raise ConfigError(
            [
                f"trainer.output_dir={config.trainer.output_dir}: {who} cannot read {run_dir / CONFIG_JSON} "
                f"({failure.strerror}); it must be one folder that all nodes share"
            ]
        ) from None
    if theirs != config.model_dump_json(indent=2) + "\n":
        raise ConfigError([f"{who} was given other overrides than {maker} (see {run_dir / CONFIG_JSON})"])
