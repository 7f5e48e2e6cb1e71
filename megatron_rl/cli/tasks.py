"""Commands that run one task on every rank: ``train``, ``sft``, ``generate``, ``evaluate``."""

from __future__ import annotations

from launchers.submit import launch_task
from megatron_rl.cli.compose import compose_run


def train(argv: list[str]) -> int:
    """Train with reinforcement learning; returns the exit code of the ranks."""
    return launch_task("train", compose_run(argv))


def sft(argv: list[str]) -> int:
    """Fine-tune on prompt/response pairs; returns the exit code of the ranks."""
    return launch_task("sft", compose_run(argv))


def generate(argv: list[str]) -> int:
    """Sample answers into a file; returns the exit code of the ranks."""
    return launch_task("generate", compose_run(argv))


def evaluate(argv: list[str]) -> int:
    """Score a policy on held-out prompts; returns the exit code of the ranks."""
    return launch_task("evaluate", compose_run(argv))
