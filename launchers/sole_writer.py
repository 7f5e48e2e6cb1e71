"""One writer for each experiment: two runs of one name would save over each other and resume from each other.

For runs that a person starts. Jobs of Slurm are told apart in the queue (``launchers.slurm_client``): a file system may keep
the lock of a node that died, and the requeued job must not wait for it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from socket import gethostname

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import experiment_dir

LOCK_FILE = ".writer"
WRITING_TASKS = ("train", "sft")
"""Tasks that leave checkpoints in the experiment's folder; the others may run beside them."""


@contextmanager
def sole_writer(task: str, config: RunConfig) -> Iterator[None]:
    """Hold the experiment's folder while a run writes into it.

    The kernel lets go when this process ends, however it ends, so nothing is left behind. Where the file system has no
    locks, nothing is held.

    Raises:
        ConfigError: another process holds it.
    """
    if task not in WRITING_TASKS:
        yield
        return
    folder = experiment_dir(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # making the run folder fails as well, and says why
        yield
        return
    try:
        _lock(descriptor, task, config)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, task: str, config: RunConfig) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another run"
        raise ConfigError(
            [
                f"trainer.experiment_name={config.trainer.experiment_name}: {holder} is writing to {experiment_dir(config)}; "
                f"wait for it, stop it, or give this run a name of its own; if its machine died, remove {LOCK_FILE} there"
            ]
        ) from None
    except OSError:
        return
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{task}, process {os.getpid()} on {gethostname()},\n".encode())
