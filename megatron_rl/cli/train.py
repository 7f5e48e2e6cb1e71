"""``megatron-rl train``."""

from __future__ import annotations

from launchers.submit import launch_task
from megatron_rl.cli.compose import compose_run


def run(argv: list[str]) -> int:
    """Train with reinforcement learning; returns the exit code of the ranks."""
    return launch_task("train", compose_run(argv))
