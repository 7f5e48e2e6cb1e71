"""Memory of the fullest rank, phase by phase: who holds what, in bytes.

Two ranks are looked at, the first (first pipeline stage of every role) and the last; the larger counts, per phase.
"""

from __future__ import annotations

from collections.abc import Iterator

from megatron_rl.estimator.activations import forward_working_bytes, stage_activation_bytes
from megatron_rl.estimator.deployment import Deployment, RoleSetup
from megatron_rl.estimator.engine_memory import engine_parts
from megatron_rl.estimator.memory_part import PHASES, MemoryPart, Phase, PhaseMemory
from megatron_rl.estimator.parameters import rank_parameters
from megatron_rl.parallel.layout import padded_vocab_size

LOGIT_WORKSPACE_BYTES = 2**30
"""Logits that the fused LM head keeps at one time on a GPU (``kernels.linear_logprob``); a test keeps the two equal."""
CPU_CHUNK_ELEMENTS = 2**26
"""Logits of one chunk on CPU; likewise."""
GRADIENT_BYTES = 4
MOMENT_BYTES = 8
OPTIMIZER_STEP_BYTES = 4
"""Per parameter of the shard: temporaries of an Adam step that is not fused."""
_CPU_CHUNK_COPIES = 3
"""f32 matrices of one chunk's size that the loss on CPU holds."""


def phase_memory(
    deployment: Deployment, *, context_bytes: int, cuda_graph_bytes: int, num_micro_batches: int = 8
) -> tuple[PhaseMemory, ...]:
    """Memory of the fullest rank in each phase this deployment takes part in.

    Args:
        deployment: roles, engine and what is offloaded.
        context_bytes: CUDA context, library workspaces and communicators of one process.
        cuda_graph_bytes: of one engine.
        num_micro_batches: of one optimizer step and data-parallel rank; more than the stages changes nothing.
    """
    answers = []
    for phase in PHASES:
        if not _takes_part(deployment, phase):
            continue
        fixed = [MemoryPart("process", "context", context_bytes)]
        fixed += engine_parts(deployment, phase, cuda_graph_bytes)
        ends = (False, True) if any(role.layout.pipeline > 1 for role in deployment.roles) else (True,)
        ranks = [[*fixed, *_role_parts(deployment, phase, last, num_micro_batches)] for last in ends]
        parts = max(ranks, key=lambda rank: sum(part.size_bytes for part in rank))
        answers.append(PhaseMemory(phase, tuple(part for part in parts if part.size_bytes > 0)))
    return tuple(answers)


def _takes_part(deployment: Deployment, phase: Phase) -> bool:
    if phase in ("rollout", "switch-over"):
        return deployment.engine is not None
    return phase == "scoring" or deployment.role("critic" if phase == "update critic" else "actor") is not None


def _role_parts(deployment: Deployment, phase: Phase, last: bool, num_micro_batches: int) -> Iterator[MemoryPart]:
    for role in deployment.roles:
        stage = role.layout.pipeline - 1 if last else 0
        yield from state_parts(deployment, role, stage, phase)
        if phase == f"update {role.name}":
            working = update_working_bytes(deployment, role, stage, num_micro_batches)
            yield MemoryPart(role.name, "working memory", working)
    if phase == "scoring":
        yield MemoryPart(
            "all roles", "working memory", max(scoring_working_bytes(deployment, r, last) for r in deployment.roles)
        )
    if phase == "switch-over":
        yield MemoryPart("engine", "transfer budget", deployment.sync_budget_bytes)


def state_parts(deployment: Deployment, role: RoleSetup, stage: int, phase: Phase) -> Iterator[MemoryPart]:
    """Weights, gradients and optimizer state of a role that are on the GPU in a phase.

    Gradients are f32 and whole on every rank; the f32 copy of 16-bit weights and the two moments are cut over the
    data-parallel ranks (Rajbhandari et al. 2020, stage 1).
    """
    parameters = rank_parameters(deployment.model, role.layout, stage, role.head)
    swapped = deployment.offload in ("swap", "host_optimizer")
    own = phase == f"update {role.name}" or (phase == "scoring" and not role.trained)
    if not swapped or role.name == "actor" or own or phase == "scoring":
        yield MemoryPart(role.name, "weights", parameters.total * deployment.weight_bytes)
    if not role.trained or (swapped and not own):
        return
    yield MemoryPart(role.name, "gradients", parameters.total * GRADIENT_BYTES)
    if deployment.offload != "host_optimizer":
        yield MemoryPart(role.name, "optimizer", optimizer_bytes(deployment, role, stage))


def optimizer_bytes(deployment: Deployment, role: RoleSetup, stage: int) -> int:
    """Optimizer state of one rank: 12 bytes per 16-bit parameter of its shard, 8 per f32 one."""
    parameters, layout = rank_parameters(deployment.model, role.layout, stage, role.head), role.layout
    per_parameter = MOMENT_BYTES + (4 if deployment.weight_bytes == 2 else 0)
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
    if deployment.offload != "host_optimizer":
        step = rank_parameters(model, role.layout, stage, role.head).total * OPTIMIZER_STEP_BYTES
        step //= role.layout.data if role.distributed_optimizer else 1
    return max(round(kept + max(backward, head)), step)


def scoring_working_bytes(deployment: Deployment, role: RoleSetup, last: bool) -> int:
    """What a forward pass without gradients needs: one layer, or the head."""
    body = forward_working_bytes(deployment.model, role, deployment.weight_bytes)
    head = head_bytes(deployment, role, with_gradients=False) if last or role.layout.pipeline == 1 else 0
    return round(max(body, head))


def head_bytes(deployment: Deployment, role: RoleSetup, *, with_gradients: bool) -> int:
    """LM head and log-probabilities: a workspace of logits and, backward, gradients of the weight and of the hidden states.

    The final norm's f32 input, its normed copy and its output are kept for every token. On a GPU the hidden states'
    gradient adds up in f32, on CPU the weight's.
    """
    model, e, tokens = deployment.model, deployment.weight_bytes, role.micro_batch_tokens
    hidden = tokens * model.hidden_size
    norm = hidden * (4 + 2 * e)
    if role.head == "value":
        return norm + hidden * 4
    rows = padded_vocab_size(model.vocab_size, role.layout.tensor) // role.layout.tensor
    if deployment.on_gpu:
        logits = min(LOGIT_WORKSPACE_BYTES, tokens * rows * (4 + e))
        gradients = rows * model.hidden_size * e + hidden * (4 + e)
    else:
        logits = min(tokens, max(1, CPU_CHUNK_ELEMENTS // rows)) * rows * 4 * _CPU_CHUNK_COPIES
        gradients = rows * model.hidden_size * (4 + e) + hidden * e
    return norm + logits + (gradients if with_gradients else 0)
