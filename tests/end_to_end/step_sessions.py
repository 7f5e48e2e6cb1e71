"""What the layout tests run on their ranks: RL steps of many configurations in one process group, without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_rl.config.run import RunConfig
from megatron_rl.data.prompts import tokenizer_of
from megatron_rl.observability.logger import MetricLogger
from megatron_rl.training import rl
from megatron_rl.training.export import export_actor
from megatron_rl.training.job import Job
from megatron_rl.training.out_of_memory import memory_advisor
from megatron_rl.training.roles import Actor, ValueModel
from megatron_rl.types.metrics import to_floats
from tests.end_to_end.fixed_rollouts import FixedScorer, NoSync, fixed_rollout_side, fixed_rollouts


@dataclass(frozen=True)
class StepAnswer:
    """What a step left on one rank."""

    metrics: dict[str, float]
    exported: Path
    """The updated policy."""
    values_BS: np.ndarray | None
    """The updated critic on the same rollouts; None without one."""


def take_steps(configs: dict[str, RunConfig], folder: Path, num_steps: int = 1) -> dict[str, StepAnswer]:
    """The last of ``num_steps`` steps of each configuration, all of them on the same rollouts."""
    rl.build_rollout_side = lambda job, tokenizer, shared: fixed_rollout_side()
    rl.build_weight_sync = lambda job, actor, engine, plan: NoSync()  # type: ignore[assignment, return-value]
    return {name: _last_step(config, folder / name, num_steps) for name, config in configs.items()}


def _last_step(config: RunConfig, folder: Path, num_steps: int) -> StepAnswer:
    job = Job.join(config, folder)
    tokenizer = tokenizer_of(config.model)
    stream, advisor = rl._stream(job, tokenizer), memory_advisor(job, None)
    parts = rl._build(job, tokenizer, stream, 10, FixedScorer(), MetricLogger(), advisor)  # type: ignore[arg-type]
    for step in range(1, num_steps + 1):
        result = parts.trainer.step(step, parts.stream.next_batch)
    actor, critic = parts.trainer._actor, parts.trainer._critic
    assert isinstance(actor, Actor)
    actor.role.check_replicas()
    export_actor(job, actor.role, folder / "policy")
    values_BS = None
    if isinstance(critic, ValueModel):
        critic.role.check_replicas()
        values_BS = critic.values(fixed_rollouts()).numpy()
    return StepAnswer(to_floats({**result.metrics}), folder / "policy", values_BS)
