"""The logger and its sinks together."""

from __future__ import annotations

import io

from rich.console import Console

from megatron_rl.config.training import TrainerConfig
from megatron_rl.observability.console import ConsoleSink
from megatron_rl.observability.logger import MetricLogger, build_logger
from megatron_rl.observability.sinks import JsonlSink, read_metrics
from megatron_rl.types.metrics import Metric


class BrokenSink:
    def __init__(self) -> None:
        self.num_writes = 0

    def write(self, step, values):
        self.num_writes += 1
        raise OSError("no route to host")

    def close(self):
        pass


def test_failing_tracker_is_reported_once_and_left_out(tmp_path, caplog):
    broken = BrokenSink()
    logger = MetricLogger(JsonlSink(tmp_path / "metrics.jsonl"), None, [broken])
    for step in (1, 2, 3):
        logger.log(step, {"reward/mean": Metric(0.5)})
    logger.close()
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3
    assert broken.num_writes == 1 and len(caplog.records) == 1


def test_other_ranks_write_nothing(tmp_path):
    logger = build_logger(TrainerConfig(logger=["console", "tensorboard"]), tmp_path / "run", rank=1, run_config={})
    with logger.progress(0, 2):
        logger.log(1, {"reward/mean": Metric(0.5)})
    logger.close()
    assert not (tmp_path / "run").exists()


def test_main_rank_writes_jsonl_and_tensorboard(tmp_path):
    logger = build_logger(TrainerConfig(logger=["tensorboard"]), tmp_path, rank=0, run_config={})
    logger.log(1, {"reward/mean": Metric(0.5)})
    logger.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "reward/mean": 0.5}]
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_console_prints_a_header_and_aligned_rows():
    output = io.StringIO()
    sink = ConsoleSink(Console(file=output, width=60))
    with sink.progress(0, 3):
        sink.write(1, {"reward/mean": 0.25, "timing_s/step": 1.5})
        sink.write(2, {"reward/mean": 0.5, "timing_s/step": 12.0})
        sink.write(3, {"reward/mean": 0.5, "timing_s/step": 12.0, "val/accuracy/mean": 0.125})
    assert output.getvalue().splitlines() == [
        "  step   reward   s/step",
        "     1    0.250     1.50",
        "     2    0.500    12.00",
        "  step   reward  held-out   s/step",
        "     3    0.500     0.125    12.00",
    ]
