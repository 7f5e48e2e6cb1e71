"""Callbacks hung into the end-to-end runs by ``trainer.callbacks``."""

from __future__ import annotations

import os
import signal

import torch.distributed as dist

from megatron_rl.training.callbacks import TrainerCallback
from megatron_rl.training.ppo_trainer import StepResult
from megatron_rl.types.metrics import Metric, Metrics
from tests.end_to_end.rewards import spread


class CheckJoins(TrainerCallback):
    """Counts samples whose prompt ids, response text or reward belong to another sample."""

    def on_step_end(self, step: int, result: StepResult) -> Metrics:
        rollouts, scored = result.rollouts, result.scored
        mixed_up = 0
        for b, group in enumerate(rollouts.group_ids_B.tolist()):
            prompt = result.prompts.prompts[group]
            ids = tuple(rollouts.tokens_BS[b, : int(rollouts.prompt_lengths_B[b])].tolist())
            reward = spread(prompt.text, scored.responses[b], prompt.row["answer"], prompt.row)
            mixed_up += ids != prompt.token_ids or abs(reward - float(scored.rewards_B[b])) > 1e-6
        rows = sum(10**place * int(prompt.row["answer"]) for place, prompt in enumerate(result.prompts.prompts))
        return {"check/mixed_up": Metric(float(mixed_up), "sum"), "check/rows": Metric(float(rows), "last")}


class TerminateAfterStep4(TrainerCallback):
    """SIGTERM to the last rank alone, between steps 4 and 5."""

    def on_step_end(self, step: int, result: StepResult) -> Metrics:
        if step == 4 and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return {}
