"""Fully sharded data parallelism as an alternative on paper: everything cut over all ranks, layers gathered for use.

This version does not train with it; the row says what would be gained. Rajbhandari et al. 2020, stage 3: each
micro-batch gathers the weights twice and scatters the gradients once.
"""

from __future__ import annotations

from dataclasses import replace

from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.coefficients import Coefficients
from megatron_rl.estimator.communication import all_gather_s, link
from megatron_rl.estimator.deployment import Deployment, RoleName, RoleSetup, Workload
from megatron_rl.estimator.memory import scoring_working_bytes, update_working_bytes
from megatron_rl.estimator.memory_part import MemoryPart, Phase, PhaseMemory
from megatron_rl.estimator.parameters import engine_parameters, layer_parts, rank_parameters
from megatron_rl.estimator.step_time import TimePart, num_micro_batches, step_parts
from megatron_rl.parallel.layout import ParallelLayout

_PHASE_OF_ROLE: dict[RoleName, Phase] = {"actor": "update actor", "critic": "update critic", "reference": "scoring"}
"""In which a role needs most."""
_REPLACED = ("workspace", "weights")
"""Parts of the engine that the rollout alone needs, or that are shared with an actor that is not sharded."""


def fsdp_deployment(base: Deployment) -> Deployment:
    """The same roles and engine with every role on DP alone, recomputing everything."""
    layout = ParallelLayout(data=base.num_gpus)
    roles = tuple(
        replace(role, layout=layout, recompute="full", weights="always", gradients="always", optimizer="always")
        for role in base.roles
    )
    return replace(base, roles=roles)


def fsdp_memory(deployment: Deployment, resident: PhaseMemory) -> tuple[PhaseMemory, ...]:
    """Scoring and updates of one rank; ``resident`` is the rollout phase of the base, whose fixed parts stay.

    Weights cut over all ranks are no engine's, so the engine has its own.
    """
    kept = [part for part in resident.parts if part.role in ("engine", "process") and part.kind not in _REPLACED]
    if deployment.engine is not None:
        own = engine_parameters(deployment.model, deployment.engine.tensor) * deployment.weight_bytes
        kept.append(MemoryPart("engine", "weights", own))
    kept += [MemoryPart(role.name, "sharded state", _state_bytes(deployment, role)) for role in deployment.roles]
    phases = []
    for role in deployment.roles:
        gathered = MemoryPart(role.name, "gathered layers", _gathered_bytes(deployment))
        if role.trained:
            working = update_working_bytes(deployment, role, 0, num_micro_batches=1)
        else:
            working = scoring_working_bytes(deployment, role, True)
        activations = MemoryPart(role.name, "working memory", working)
        phases.append(PhaseMemory(_PHASE_OF_ROLE[role.name], (*kept, gathered, activations)))
    return tuple(phases)


def _state_bytes(deployment: Deployment, role: RoleSetup) -> int:
    count = rank_parameters(deployment.model, role.layout, 0, role.head).total
    per_parameter = deployment.weight_bytes
    if role.trained:
        per_parameter += role.gradient_bytes + deployment.optimizer_bytes(role)
    return count * per_parameter // deployment.num_gpus


def _gathered_bytes(deployment: Deployment) -> int:
    """Two layers' weights (one in use, one arriving), one layer's f32 gradients, and the embedding."""
    model, e = deployment.model, deployment.weight_bytes
    parts = layer_parts(model, model.num_layers - 1)
    layer = parts.cut + parts.replicated + parts.routed
    return layer * (2 * e + deployment.roles[0].gradient_bytes) + model.vocab_size * model.hidden_size * e


def fsdp_times(deployment: Deployment, workload: Workload, gpu: Gpu, coefficients: Coefficients) -> tuple[TimePart, ...]:
    """Like plain data parallelism, with gathers and scatters per micro-batch instead of per optimizer step."""
    parts = [
        part for part in step_parts(deployment, workload, gpu, coefficients, None) if part.component != "messages of optimizer"
    ]
    fabric, ring = link(gpu, deployment.num_gpus), coefficients.collective_frac.value
    for role in deployment.roles:
        count = rank_parameters(deployment.model, role.layout, 0, role.head).total
        gather = all_gather_s(count * deployment.weight_bytes, deployment.num_gpus, fabric, ring)
        scatter = all_gather_s(count * role.gradient_bytes, deployment.num_gpus, fabric, ring)
        parts.append(TimePart("scoring", role.name, "gathered weights", num_micro_batches(role, workload) * gather))
        if role.trained:
            passes = workload.actor_passes if role.name == "actor" else workload.critic_passes
            micro = num_micro_batches(role, workload) * passes
            parts.append(TimePart("update", role.name, "gathered weights", micro * (2 * gather + scatter)))
    return tuple(parts)
