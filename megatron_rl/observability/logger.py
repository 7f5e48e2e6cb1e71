"""Hands a step's metrics to every sink."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from megatron_rl.config.run_files import METRICS_FILE
from megatron_rl.config.training import TrainerConfig
from megatron_rl.observability.console import ConsoleSink
from megatron_rl.observability.sinks import JsonlSink, Sink
from megatron_rl.types.metrics import Metrics, to_floats

logger = logging.getLogger(__name__)


class MetricLogger:
    """Writes to the JSONL file and to the trackers; without sinks (ranks other than 0) it does nothing.

    A tracker that raises is reported once and left out from then on. Only the JSONL file may stop a run.
    """

    def __init__(
        self, jsonl: JsonlSink | None = None, console: ConsoleSink | None = None, trackers: Sequence[Sink] = ()
    ) -> None:
        """Take over the sinks; :meth:`close` closes them."""
        self._jsonl = jsonl
        self._console = console
        self._trackers = [*([] if console is None else [console]), *trackers]

    def log(self, step: int, metrics: Metrics) -> None:
        """Record one step, as plain numbers."""
        values = to_floats(metrics)
        if self._jsonl is not None:
            self._jsonl.write(step, values)
        for tracker in list(self._trackers):
            self._guarded(tracker, step, values)

    def progress(self, start: int, total: int) -> AbstractContextManager[None]:
        """Show a progress bar in the console, if there is one, while the body runs."""
        return nullcontext() if self._console is None else self._console.progress(start, total)

    def close(self) -> None:
        """Close every sink."""
        for sink in [*self._trackers, *([] if self._jsonl is None else [self._jsonl])]:
            sink.close()

    def _guarded(self, tracker: Sink, step: int, values: Mapping[str, float]) -> None:
        try:
            tracker.write(step, values)
        except Exception:
            self._trackers.remove(tracker)
            logger.warning("%s failed and is off for the rest of the run", type(tracker).__name__, exc_info=True)


def build_logger(
    config: TrainerConfig, run_dir: Path, *, rank: int, run_config: Mapping[str, object], console_every: int = 1
) -> MetricLogger:
    """Make the sinks of ``trainer.logger`` on rank 0, and an empty logger elsewhere.

    Args:
        config: the trainer's section.
        run_dir: folder of the run; ``metrics.jsonl``, ``tensorboard/`` and ``wandb/`` go there.
        rank: global rank of this process.
        run_config: the resolved configuration, shown by the trackers.
        console_every: steps per console row; the files and trackers get every step.
    """
    if rank != 0:
        return MetricLogger()
    trackers: list[Sink] = []
    if "tensorboard" in config.logger:
        from megatron_rl.observability.tensorboard_sink import TensorboardSink

        trackers.append(TensorboardSink(run_dir / "tensorboard"))
    if "wandb" in config.logger:
        from megatron_rl.observability.wandb_sink import WandbSink

        trackers.append(WandbSink(config.project_name, config.experiment_name, run_dir, run_config))
    console = ConsoleSink(every=console_every) if "console" in config.logger else None
    return MetricLogger(JsonlSink(run_dir / METRICS_FILE), console, trackers)
