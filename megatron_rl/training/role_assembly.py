"""Building the roles of an RL run, and what of them may leave the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from megatron_rl.config.batch_arithmetic import batch_arithmetic
from megatron_rl.config.logprob_reuse import reuses_logprobs
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.memory_phases import MemoryPhases, frozen_holdings, trained_holdings
from megatron_rl.training.model_loading import build_actor, build_critic, build_reference
from megatron_rl.training.roles import (
    Actor,
    Critic,
    FrozenReference,
    NullCritic,
    NullReference,
    Reference,
    UpdateCut,
    ValueModel,
)


@dataclass(frozen=True)
class RunRoles:
    """The roles of a run, as the trainer sees them and as a checkpoint holds them."""

    actor: Actor
    critic: Critic
    reference: Reference
    trained: dict[str, MegatronRole]
    """``actor``, and ``critic`` where there is one."""


def build_roles(job: Job, actor_layout: ParallelLayout, total_steps: int, memory: MemoryPhases) -> RunRoles:
    """Build what the algorithm reads; a null object stands for what it does not.

    Args:
        job: the job.
        actor_layout: of the actor; the others have their own.
        total_steps: RL steps of the run, for the learning-rate schedules.
        memory: may move what is configured to move, from now on.

    Collectives: group creation, on all ranks.
    """
    config = job.config
    cut = partial(UpdateCut, samples_per_prompt=config.rollout.n, max_response_length=config.data.max_response_length)
    trained = _trained_roles(job, actor_layout, total_steps, memory)
    return RunRoles(
        actor=Actor(trained["actor"], config.actor, cut(config.actor), reuses_logprobs=reuses_logprobs(config)),
        critic=ValueModel(trained["critic"], config.critic, cut(config.critic)) if "critic" in trained else NullCritic(),
        reference=FrozenReference(_reference(job, memory)) if config.uses_reference else NullReference(),
        trained=trained,
    )


def _trained_roles(job: Job, actor_layout: ParallelLayout, total_steps: int, memory: MemoryPhases) -> dict[str, MegatronRole]:
    config = job.config
    per_rollout = {role.role: role.optimizer_steps for role in batch_arithmetic(config, job.world_size).roles}
    actor_steps = max(1, total_steps - config.critic.warmup_steps) * per_rollout["actor"]
    roles = {"actor": build_actor(job, actor_steps, config.rollout.temperature, layout=actor_layout)}
    memory.adopt(trained_holdings("actor", roles["actor"], config.actor))
    if config.uses_critic:
        roles["critic"] = build_critic(job, total_steps * per_rollout["critic"])
        memory.adopt(trained_holdings("critic", roles["critic"], config.critic, parameters=config.critic.param_offload))
    return roles


def _reference(job: Job, memory: MemoryPhases) -> MegatronRole:
    role = build_reference(job)
    if job.config.ref.param_offload:
        memory.adopt(frozen_holdings("ref", role))
    return role
