"""Traffic between pipeline stages over all ranks, step by step."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from megatron_rl.training.callbacks import TrainerCallback
from megatron_rl.training.ppo_trainer import StepResult
from megatron_rl.training.send_recv import PIPELINE_METER
from megatron_rl.types.metrics import Metric, Metrics


class SendRecvReport(TrainerCallback):
    """Reports the meter of the rank that waited longest, and the bytes of all."""

    def __init__(self, group: ProcessGroup) -> None:
        """``group`` covers all ranks and carries CPU tensors."""
        self._group = group

    def on_train_begin(self, start_step: int, total_steps: int) -> None:
        """Forget what came before the first step."""
        PIPELINE_METER.flush()

    def on_step_end(self, step: int, result: StepResult) -> Metrics:
        """Metrics of the step, of runs with several stages. Collectives: two all-reduces over all ranks."""
        moved, waited_s = PIPELINE_METER.flush()
        num_bytes, longest_s = torch.tensor([float(moved)], dtype=torch.float64), torch.tensor([waited_s])
        dist.all_reduce(num_bytes, group=self._group)
        dist.all_reduce(longest_s, op=dist.ReduceOp.MAX, group=self._group)
        return {
            # Each byte is counted where it leaves and where it arrives.
            "perf/nccl_send_recv_bytes": Metric(float(num_bytes) / 2, "sum"),
            "perf/nccl_send_recv_wait_time_ms": Metric(float(longest_s) * 1e3, "sum"),
        }
