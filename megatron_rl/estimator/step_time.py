"""Seconds of each phase of one step, by component."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.coefficients import Coefficients
from megatron_rl.estimator.communication import (
    data_parallel_s,
    expert_parallel_s,
    pipeline_p2p_s,
    tensor_parallel_s,
)
from megatron_rl.estimator.decode import engine_load, rollout_s
from megatron_rl.estimator.deployment import Deployment, RoleSetup, Workload
from megatron_rl.estimator.engine_memory import sequence_kv_bytes
from megatron_rl.estimator.flops import forward_flops, train_flops
from megatron_rl.estimator.memory import GRADIENT_BYTES, MOMENT_BYTES
from megatron_rl.estimator.parameters import rank_parameters
from megatron_rl.estimator.sync_bytes import SyncBytes, sync_s

ADAM_BYTES_PER_PARAMETER = 30
"""Read and written by one Adam step on 16-bit weights: gradient 4, master 8, moments 16, weight 2."""
HOST_ADAM_BYTES_PER_S = 50e9
"""Memory bandwidth one GPU's share of its host has for an optimizer that lives there: an assumption."""


@dataclass(frozen=True, slots=True)
class TimePart:
    """Example: ``TimePart("update", "actor", "compute", 11.2)``."""

    phase: str
    role: str
    component: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCost:
    """One pass of a role over its share of the samples."""

    compute_s: float
    messages_s: float
    """Tensor-, expert- and pipeline-parallel, not hidden behind compute."""
    bubble_s: float
    """Pipeline stages waiting for the first and after the last micro-batch."""


def num_micro_batches(role: RoleSetup, workload: Workload, optimizer_steps: int = 1, passes: int = 1) -> int:
    """Micro-batches of one optimizer step on one data-parallel rank."""
    tokens = workload.samples_per_step * passes * workload.sample_tokens / (optimizer_steps * role.layout.data)
    return max(1, -(-round(tokens) // role.micro_batch_tokens))


def pass_cost(
    deployment: Deployment,
    role: RoleSetup,
    workload: Workload,
    gpu: Gpu,
    coefficients: Coefficients,
    *,
    training: bool,
    optimizer_steps: int = 1,
    passes: int = 1,
) -> PassCost:
    """Seconds of scoring all samples once, or of training on them ``passes`` times in ``optimizer_steps`` steps.

    A pipeline of P stages with m micro-batches idles (P - 1) / m of the work (Narayanan et al. 2021, section 2.2.1).
    Full recomputation adds one forward to the three of a training pass.
    """
    model, layout = deployment.model, role.layout
    count = num_micro_batches(role, workload, optimizer_steps, passes)
    tokens = workload.samples_per_step * workload.sample_tokens * passes / layout.data
    filled = min(role.micro_batch_tokens, -(-round(tokens / optimizer_steps) // count))
    if training:
        flops = train_flops(model, [workload.sample_tokens], role.head) * workload.samples_per_step * passes
        flops *= 4 / 3 if role.recompute == "full" else 1.0
        frac = coefficients.update_frac(filled)
    else:
        flops = forward_flops(model, [workload.sample_tokens], role.head) * workload.samples_per_step
        frac = coefficients.update_frac(filled) * coefficients.score_per_update.value
    compute_s = flops / (layout.world_size * gpu.peak_flops_per_s * frac)
    ring, point = coefficients.collective_frac.value, coefficients.link_frac.value
    each = tokens / (count * optimizer_steps)
    message_s = tensor_parallel_s(model, layout, each, gpu, ring, backward=training)
    message_s += expert_parallel_s(model, layout, each, gpu, point, backward=training)
    message_s += pipeline_p2p_s(model, layout, each, gpu, point) * (2 if training else 1)
    messages_s = message_s * count * optimizer_steps
    bubble_s = (compute_s + messages_s) * (layout.pipeline - 1) / count
    return PassCost(compute_s=compute_s, messages_s=messages_s, bubble_s=bubble_s)


def optimizer_s(deployment: Deployment, role: RoleSetup, gpu: Gpu, coefficients: Coefficients) -> tuple[float, float]:
    """Seconds of one optimizer step on the first stage's rank: (messages over the data-parallel ranks, Adam)."""
    weights, layout = rank_parameters(deployment.model, role.layout, 0, role.head), role.layout
    messages = data_parallel_s(weights.total, layout, gpu, coefficients.collective_frac.value)
    shard = weights.total / (layout.data if role.distributed_optimizer else 1)
    if deployment.offload == "host_optimizer":
        wire = shard * (GRADIENT_BYTES + 2) / gpu.host_link.bytes_per_s
        return messages, wire + shard * ADAM_BYTES_PER_PARAMETER / HOST_ADAM_BYTES_PER_S
    return messages, shard * ADAM_BYTES_PER_PARAMETER / (gpu.memory_bytes_per_s * coefficients.memory_frac.value)


def swap_s(deployment: Deployment, role: RoleSetup, gpu: Gpu) -> float:
    """Seconds to bring a role's state to the GPU and back, once a step; gradients are made anew, not moved."""
    if deployment.offload not in ("swap", "host_optimizer"):
        return 0.0
    weights, layout = rank_parameters(deployment.model, role.layout, 0, role.head), role.layout
    both_ways = 0.0
    if role.trained and deployment.offload == "swap":
        both_ways += 2 * weights.total * (MOMENT_BYTES + 4) / (layout.data if role.distributed_optimizer else 1)
    if role.name != "actor":
        both_ways += (2 if role.trained else 1) * weights.total * deployment.weight_bytes
    return both_ways / gpu.host_link.bytes_per_s


def step_parts(
    deployment: Deployment, workload: Workload, gpu: Gpu, coefficients: Coefficients, sync: SyncBytes | None
) -> tuple[TimePart, ...]:
    """Every component of one step on these cards, in order; nothing overlaps."""
    parts = list(_rollout_parts(deployment, workload, gpu, coefficients))
    for role in deployment.roles:
        cost = pass_cost(deployment, role, workload, gpu, coefficients, training=False)
        parts += _named("scoring", role, cost)
    for role in deployment.roles:
        if role.trained:
            parts += _update_parts(deployment, role, workload, gpu, coefficients)
    swapped = sum(swap_s(deployment, role, gpu) for role in deployment.roles)
    parts.append(TimePart("switch-over", "all roles", "host link", swapped))
    if sync is not None:
        seconds = sync_s(
            sync,
            gpu,
            deployment.num_gpus,
            link_efficiency=coefficients.link_frac.value,
            memory_efficiency=coefficients.memory_frac.value,
        )
        parts.append(TimePart("switch-over", "engine", "weights", seconds))
    return tuple(part for part in parts if part.seconds > 0)


def _rollout_parts(deployment: Deployment, workload: Workload, gpu: Gpu, coefficients: Coefficients) -> Iterator[TimePart]:
    engine = deployment.engine
    if engine is None:
        return
    one = sequence_kv_bytes(deployment.model, workload, engine.tensor, deployment.weight_bytes)
    running = max(1, min(engine.max_num_seqs, engine.kv_cache_bytes // one))
    load = engine_load(workload, engine, running)
    yield TimePart("rollout", "engine", "generate", rollout_s(deployment.model, gpu, load, coefficients))


def _update_parts(
    deployment: Deployment, role: RoleSetup, workload: Workload, gpu: Gpu, coefficients: Coefficients
) -> Iterator[TimePart]:
    actor = role.name == "actor"
    steps = workload.actor_optimizer_steps if actor else workload.critic_optimizer_steps
    passes = workload.actor_passes if actor else workload.critic_passes
    cost = pass_cost(deployment, role, workload, gpu, coefficients, training=True, optimizer_steps=steps, passes=passes)
    yield from _named("update", role, cost)
    messages, adam = optimizer_s(deployment, role, gpu, coefficients)
    yield TimePart("update", role.name, "gradients and weights over DP", steps * messages)
    yield TimePart("update", role.name, "optimizer", steps * adam)


def _named(phase: str, role: RoleSetup, cost: PassCost) -> Iterator[TimePart]:
    yield TimePart(phase, role.name, "compute", cost.compute_s)
    yield TimePart(phase, role.name, "TP, EP and PP messages", cost.messages_s)
    yield TimePart(phase, role.name, "pipeline bubble", cost.bubble_s)


def phase_seconds(pools: Iterable[tuple[TimePart, ...]], other_frac: float) -> dict[str, float]:
    """Seconds by phase over pools of cards that work at the same time: the slowest pool counts, phase by phase.

    ``other`` is ``other_frac`` of the whole step.
    """
    slowest: dict[str, float] = {phase: 0.0 for phase in ("rollout", "scoring", "update", "switch-over")}
    for parts in pools:
        for phase in slowest:
            slowest[phase] = max(slowest[phase], sum(part.seconds for part in parts if part.phase == phase))
    slowest["other"] = sum(slowest.values()) * other_frac / (1 - other_frac)
    return slowest
