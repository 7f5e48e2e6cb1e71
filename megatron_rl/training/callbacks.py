"""Hooks a user hangs into the loop: ``trainer.callbacks=[my_module:MyCallback]``."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_rl.rewards.loading import load_object
from megatron_rl.training.ppo_trainer import StepResult
from megatron_rl.types.metrics import Metrics


class TrainerCallback:
    """Base class; override what you need. Called on every rank, so a hook may enter collectives."""

    def on_train_begin(self, start_step: int, total_steps: int) -> None:
        """Before the first step of this attempt."""

    def on_step_end(self, step: int, result: StepResult) -> Metrics:
        """After a step. Returned metrics are logged with the step's own."""
        return {}

    def on_train_end(self, last_step: int) -> None:
        """After the last step of this attempt."""


def load_callbacks(names: Sequence[str]) -> list[TrainerCallback]:
    """Build the callbacks of ``trainer.callbacks``.

    Raises:
        ValueError: a name cannot be imported or is no ``TrainerCallback``.
    """
    callbacks = []
    for name in names:
        kind = load_object(name, "trainer.callbacks")
        if not (isinstance(kind, type) and issubclass(kind, TrainerCallback)):
            raise ValueError(f"trainer.callbacks: {name} is not a subclass of megatron_rl.training.callbacks.TrainerCallback")
        callbacks.append(kind())
    return callbacks
