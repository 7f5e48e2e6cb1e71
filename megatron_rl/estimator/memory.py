"""Memory of the fullest rank, phase by phase: who holds what, in bytes.

Two ranks are looked at, the first (first pipeline stage of every role) and the last; the larger counts, per phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatron_rl.estimator.activations import forward_working_bytes, stage_activation_bytes
from megatron_rl.estimator.deployment import Deployment, Residency, RoleSetup
from megatron_rl.estimator.engine_memory import engine_parts
from megatron_rl.estimator.head_memory import head_bytes
from megatron_rl.estimator.memory_part import PHASES, MemoryPart, Phase, PhaseMemory
from megatron_rl.estimator.parameters import rank_parameters
from megatron_rl.estimator.shared_weights import engine_own_parameters

OPTIMIZER_STEP_BYTES = 4
"""Per parameter of the shard: temporaries of an Adam step that is not fused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """What a process holds whatever it computes, bytes. On CPU all of it is left out."""

    context_bytes: int
    """CUDA context and library workspaces."""
    communicator_bytes: int
    """NCCL's buffers; none on one GPU."""
    engine_bytes: int
    """CUDA graphs and persistent buffers of the engine."""


def phase_memory(deployment: Deployment, process: ProcessMemory, *, num_micro_batches: int = 8) -> tuple[PhaseMemory, ...]:
    """Memory of the fullest rank in each phase this deployment takes part in.

    Args:
        deployment: roles, engine, and what of them leaves the GPU when.
        process: fixed costs.
        num_micro_batches: of one optimizer step and data-parallel rank; more than the stages changes nothing.
    """
    communicators = process.communicator_bytes if deployment.num_gpus > 1 else 0
    fixed = [
        MemoryPart("process", "context", process.context_bytes),
        MemoryPart("process", "communicators", communicators),
    ]
    ends = (False, True) if any(role.layout.pipeline > 1 for role in deployment.roles) else (True,)
    answers = []
    for phase in PHASES:
        if not _takes_part(deployment, phase):
            continue
        ranks = []
        for last in ends:
            engine = engine_parts(deployment, phase, _engine_stage(deployment, last), process.engine_bytes)
            ranks.append([*fixed, *engine, *_role_parts(deployment, phase, last, num_micro_batches)])
        parts = max(ranks, key=lambda rank: sum(part.size_bytes for part in rank))
        answers.append(PhaseMemory(phase, tuple(part for part in parts if part.size_bytes > 0)))
    return tuple(answers)


def _engine_stage(deployment: Deployment, last: bool) -> int:
    actor = deployment.role("actor")
    return actor.layout.pipeline - 1 if actor is not None and last else 0


def _takes_part(deployment: Deployment, phase: Phase) -> bool:
    if phase in ("rollout", "switch-over"):
        return deployment.engine is not None
    return phase == "scoring" or deployment.role("critic" if phase == "update critic" else "actor") is not None


def _role_parts(deployment: Deployment, phase: Phase, last: bool, num_micro_batches: int) -> list[MemoryPart]:
    """State of all roles and working memory of the one at work: of the hungriest, where they score one by one."""
    if phase == "scoring":
        candidates = [_scoring_parts(deployment, role, last) for role in deployment.roles]
        return max(candidates, key=lambda parts: sum(part.size_bytes for part in parts))
    at_work = next((role for role in deployment.roles if phase == f"update {role.name}"), None)
    parts = _states(deployment, at_work, last, updates=True)
    if at_work is not None:
        working = update_working_bytes(deployment, at_work, _stage(at_work, last), num_micro_batches)
        parts.append(MemoryPart(at_work.name, "working memory", working))
    if phase == "switch-over" and _moves_weights(deployment):
        parts.append(MemoryPart("engine", "transfer budget", deployment.sync_budget_bytes))
    return parts


def _scoring_parts(deployment: Deployment, role: RoleSetup, last: bool) -> list[MemoryPart]:
    working = scoring_working_bytes(deployment, role, last)
    return [*_states(deployment, role, last, updates=False), MemoryPart(role.name, "working memory", working)]


def _states(deployment: Deployment, at_work: RoleSetup | None, last: bool, *, updates: bool) -> list[MemoryPart]:
    parts: list[MemoryPart] = []
    for role in deployment.roles:
        working = role is at_work
        parts += state_parts(deployment, role, _stage(role, last), working=working, updated=working and updates)
    return parts


def _stage(role: RoleSetup, last: bool) -> int:
    return role.layout.pipeline - 1 if last else 0


def _moves_weights(deployment: Deployment) -> bool:
    """Whether any rank receives weights; where the engine reads all of them in place there is nothing to send."""
    actor, engine = deployment.role("actor"), deployment.engine
    if actor is None or engine is None or not engine.aliased:
        return True
    stages = range(actor.layout.pipeline)
    return any(engine_own_parameters(deployment.model, actor.layout, engine.tensor, stage) for stage in stages)


def state_parts(deployment: Deployment, role: RoleSetup, stage: int, *, working: bool, updated: bool) -> Iterator[MemoryPart]:
    """Weights, gradients and optimizer state of a role on the GPU, while it works (scores or is updated) or does not.

    Gradients are whole on every rank; master copy and moments are cut over the data-parallel ranks (Rajbhandari et al.
    2020, stage 1).
    """
    parameters = rank_parameters(deployment.model, role.layout, stage, role.head)
    if _is_present(role.weights, working):
        yield MemoryPart(role.name, "weights", parameters.total * deployment.weight_bytes)
    if role.trained and _is_present(role.gradients, updated):
        yield MemoryPart(role.name, "gradients", parameters.total * role.gradient_bytes)
    if role.trained and _is_present(role.optimizer, updated):
        yield MemoryPart(role.name, "optimizer", optimizer_state_bytes(deployment, role, stage))


def _is_present(residency: Residency, own_phase: bool) -> bool:
    return residency == "always" or (residency == "own_phase" and own_phase)


def optimizer_state_bytes(deployment: Deployment, role: RoleSetup, stage: int) -> int:
    """Optimizer state of one rank: master copies and moments of its shard."""
    parameters, layout = rank_parameters(deployment.model, role.layout, stage, role.head), role.layout
    per_parameter = deployment.optimizer_bytes(role)
    if not role.distributed_optimizer:
        return parameters.total * per_parameter
    expert_replicas = layout.tensor * layout.context * layout.data // (layout.expert * layout.etp)
    dense = -(-parameters.dense // (layout.data * layout.context))
    return (dense + -(-parameters.routed // expert_replicas)) * per_parameter


def update_working_bytes(deployment: Deployment, role: RoleSetup, stage: int, num_micro_batches: int) -> int:
    """What a trained role needs beside its state: activations and head of forward and backward, or the Adam step."""
    model, e = deployment.model, deployment.weight_bytes
    kept = stage_activation_bytes(
        model, role, stage, weight_bytes=e, on_gpu=deployment.on_gpu, num_micro_batches=num_micro_batches
    )
    backward = forward_working_bytes(model, role, e)  # gradients of one layer's activations
    head = head_bytes(deployment, role, with_gradients=True) if stage == role.layout.pipeline - 1 else 0
    step = 0
    if role.optimizer != "never" and not deployment.fused_adam:
        step = rank_parameters(model, role.layout, stage, role.head).total * OPTIMIZER_STEP_BYTES
        step //= role.layout.data if role.distributed_optimizer else 1
    return max(round(kept + max(backward, head)), step)


def scoring_working_bytes(deployment: Deployment, role: RoleSetup, last: bool) -> int:
    """What a forward pass without gradients needs: one layer, or the head."""
    body = forward_working_bytes(deployment.model, role, deployment.weight_bytes)
    head = head_bytes(deployment, role, with_gradients=False) if last or role.layout.pipeline == 1 else 0
    return round(max(body, head))
