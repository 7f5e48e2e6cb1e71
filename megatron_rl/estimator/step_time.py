"""Seconds of each phase of one step, by component: work at its price, messages, and stages that wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.coefficients import Coefficients, seconds
from megatron_rl.estimator.communication import (
    data_parallel_s,
    expert_parallel_s,
    link,
    pipeline_p2p_s,
    tensor_parallel_s,
)
from megatron_rl.estimator.decode import engine_load, rollout_messages_s, rollout_work
from megatron_rl.estimator.deployment import Deployment, RoleName, RoleSetup, Workload
from megatron_rl.estimator.engine_memory import sequence_kv_bytes
from megatron_rl.estimator.measurements import PhaseName
from megatron_rl.estimator.parameters import rank_parameters
from megatron_rl.estimator.sync_bytes import SyncBytes
from megatron_rl.estimator.work import NOTHING, Documents, Work, optimizer_step_work, pass_work

HOST_ADAM_BYTES_PER_S = 50e9
"""Memory bandwidth one GPU's share of its host has for an optimizer that lives there: an assumption."""

_SCORING: dict[RoleName, PhaseName] = {"actor": "score_actor", "reference": "score_reference", "critic": "score_critic"}
_SHOWN: dict[PhaseName, str] = {
    "rollout": "rollout",
    "score_actor": "scoring",
    "score_reference": "scoring",
    "score_critic": "scoring",
    "update_critic": "update",
    "update_actor": "update",
    "sync": "switch-over",
    "other": "other",
}
"""Phase as it is measured -> phase of the tables."""


@dataclass(frozen=True, slots=True)
class TimePart:
    """Example: ``TimePart("update", "actor", "compute", 11.2)``."""

    phase: str
    role: str
    component: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """One component of a phase, before coefficients turn work into seconds."""

    phase: PhaseName
    role: str
    component: str
    work: Work = NOTHING
    messages_s: float = 0.0
    """Not hidden behind work."""
    bubble_frac: float = 0.0
    """Of the rest: pipeline stages waiting for the first and after the last micro-batch."""

    def seconds(self, gpu: Gpu, known: Coefficients) -> float:
        """All of it."""
        return (seconds(self.work, gpu, known) + self.messages_s) * (1 + self.bubble_frac)


def num_micro_batches(role: RoleSetup, workload: Workload, optimizer_steps: int = 1, passes: int = 1) -> int:
    """Micro-batches of one optimizer step on one data-parallel rank."""
    tokens = workload.samples_per_step * passes * workload.sample_tokens / (optimizer_steps * role.layout.data)
    return max(1, -(-round(tokens) // role.micro_batch_tokens))


def pass_cost(
    deployment: Deployment,
    role: RoleSetup,
    workload: Workload,
    gpu: Gpu,
    known: Coefficients,
    *,
    training: bool,
    optimizer_steps: int = 1,
    passes: int = 1,
) -> PhaseCost:
    """Scoring all samples once, or training on them ``passes`` times in ``optimizer_steps`` steps.

    A pipeline of P stages with v chunks each and m micro-batches idles (P - 1) / (v m) of the work (Narayanan et al. 2021,
    section 2.2.2).
    """
    model, layout = deployment.model, role.layout
    count = num_micro_batches(role, workload, optimizer_steps, passes)
    samples = workload.samples_per_step * passes / layout.data
    documents = Documents(
        tokens=samples * workload.sample_tokens,
        squared_tokens=samples * workload.attended_tokens,
        predicted_tokens=samples * workload.response_tokens,
        micro_batches=count * optimizer_steps,
    )
    ring, point = known.collective_frac.value, known.link_frac.value
    each = documents.tokens / documents.micro_batches
    message_s = tensor_parallel_s(model, layout, each, gpu, ring, backward=training)
    message_s += expert_parallel_s(model, layout, each, gpu, point, backward=training)
    message_s += pipeline_p2p_s(model, layout, each, gpu, point) * (2 if training else 1)
    updates: PhaseName = "update_critic" if role.name == "critic" else "update_actor"
    return PhaseCost(
        phase=updates if training else _SCORING[role.name],
        role=role.name,
        component="forward and backward" if training else "forward",
        work=pass_work(deployment, role, documents, training=training),
        messages_s=message_s * documents.micro_batches,
        bubble_frac=(layout.pipeline - 1) / (layout.virtual_pipeline * count),
    )


def optimizer_cost(deployment: Deployment, role: RoleSetup, gpu: Gpu, known: Coefficients, steps: int) -> PhaseCost:
    """``steps`` optimizer steps on the first stage's rank, with their messages over the data-parallel ranks."""
    weights, layout = rank_parameters(deployment.model, role.layout, 0, role.head), role.layout
    messages = data_parallel_s(weights.total, layout, gpu, known.collective_frac.value, role.gradient_bytes)
    work = optimizer_step_work(deployment, role)
    if role.optimizer == "never":
        shard = weights.total / (layout.data if role.distributed_optimizer else 1)
        messages += shard * (role.gradient_bytes + deployment.weight_bytes) / gpu.host_link.bytes_per_s
        messages += work.copied_bytes / HOST_ADAM_BYTES_PER_S
        work = NOTHING
    phase: PhaseName = "update_critic" if role.name == "critic" else "update_actor"
    return PhaseCost(phase=phase, role=role.name, component="optimizer", work=work.times(steps), messages_s=steps * messages)


def swap_s(deployment: Deployment, role: RoleSetup, gpu: Gpu, known: Coefficients) -> float:
    """Seconds to bring what leaves of a role's state to the GPU and back, once a step; gradients are not moved."""
    weights, layout = rank_parameters(deployment.model, role.layout, 0, role.head), role.layout
    moved = 0.0
    if role.trained and role.optimizer == "own_phase":
        moved += weights.total * deployment.optimizer_bytes(role) / (layout.data if role.distributed_optimizer else 1)
    if role.weights == "own_phase":
        moved += weights.total * deployment.weight_bytes
    return 2 * moved / (gpu.host_link.bytes_per_s * known.link_frac.value)


def sync_cost(size: SyncBytes, gpu: Gpu, span: int, known: Coefficients) -> PhaseCost:
    """The weight transfer: the wire, then packing, unpacking and local copies, each read and written once."""
    wire = size.received_bytes / (link(gpu, span).bytes_per_s * known.link_frac.value)
    work = Work(copied_bytes=2 * size.copied_bytes + 4 * size.received_bytes, pushes=1)
    return PhaseCost(phase="sync", role="engine", component="weights", work=work, messages_s=wire)


def step_costs(
    deployment: Deployment, workload: Workload, gpu: Gpu, known: Coefficients, sync: SyncBytes | None
) -> Iterator[PhaseCost]:
    """Every component of one step on these cards, in order; nothing overlaps."""
    yield from _rollout_costs(deployment, workload, gpu, known)
    for role in deployment.roles:
        if role.name != "actor" or workload.scores_actor:
            yield pass_cost(deployment, role, workload, gpu, known, training=False)
    for role in deployment.roles:
        if role.trained:
            actor = role.name == "actor"
            steps = workload.actor_optimizer_steps if actor else workload.critic_optimizer_steps
            passes = workload.actor_passes if actor else workload.critic_passes
            yield pass_cost(deployment, role, workload, gpu, known, training=True, optimizer_steps=steps, passes=passes)
            yield optimizer_cost(deployment, role, gpu, known, steps)
    swapped = sum(swap_s(deployment, role, gpu, known) for role in deployment.roles)
    yield PhaseCost(phase="other", role="all roles", component="host link", messages_s=swapped)
    if sync is not None:
        yield sync_cost(sync, gpu, deployment.num_gpus, known)
    samples = Work(samples=workload.samples_per_step if deployment.engine is not None else 0)
    yield PhaseCost(phase="other", role="all roles", component="rewards, packing, logging", work=samples)


def _rollout_costs(deployment: Deployment, workload: Workload, gpu: Gpu, known: Coefficients) -> Iterator[PhaseCost]:
    engine = deployment.engine
    if engine is None:
        return
    one = sequence_kv_bytes(deployment.model, workload, engine.tensor, deployment.weight_bytes)
    fitting = engine.kv_cache_bytes // one or engine.max_num_seqs  # a cache of unknown size is taken to be large enough
    running = min(engine.max_num_seqs, fitting)
    load = engine_load(workload, engine, running)
    yield PhaseCost(
        phase="rollout",
        role="engine",
        component="generate",
        work=rollout_work(deployment.model, load),
        messages_s=rollout_messages_s(deployment.model, gpu, load, known.collective_frac.value),
    )


def step_parts(
    deployment: Deployment, workload: Workload, gpu: Gpu, known: Coefficients, sync: SyncBytes | None
) -> tuple[TimePart, ...]:
    """The same in seconds, with messages and waiting apart."""
    parts: list[TimePart] = []
    for cost in step_costs(deployment, workload, gpu, known, sync):
        shown, work_s = _SHOWN[cost.phase], seconds(cost.work, gpu, known)
        parts.append(TimePart(shown, cost.role, cost.component, work_s))
        messages = f"messages of {cost.component}" if work_s else cost.component
        parts.append(TimePart(shown, cost.role, messages, cost.messages_s))
        parts.append(TimePart(shown, cost.role, "pipeline bubble", (work_s + cost.messages_s) * cost.bubble_frac))
    return tuple(part for part in parts if part.seconds > 0)


def phase_seconds(pools: Iterable[tuple[TimePart, ...]]) -> dict[str, float]:
    """Seconds by phase over pools of cards that work at the same time: the slowest pool counts, phase by phase."""
    slowest = dict.fromkeys(dict.fromkeys(_SHOWN.values()), 0.0)
    for parts in pools:
        for phase in slowest:
            slowest[phase] = max(slowest[phase], sum(part.seconds for part in parts if part.phase == phase))
    return slowest
