"""A callback that times whole steps, logging and everything else between two steps included."""

from __future__ import annotations

import time

from megatron_rl.training.callbacks import TrainerCallback
from megatron_rl.training.ppo_trainer import StepResult
from megatron_rl.types.metrics import Metric, Metrics


class WallClock(TrainerCallback):
    """Adds ``perf/seconds_since_step``: from the end of the last step to the end of this one, validation included.

    The first step counts from the start of training.
    """

    def on_train_begin(self, start_step: int, total_steps: int) -> None:
        """Start the clock."""
        self._last = time.perf_counter()

    def on_step_end(self, step: int, result: StepResult) -> Metrics:
        """Read it."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return {"perf/seconds_since_step": Metric(seconds)}
