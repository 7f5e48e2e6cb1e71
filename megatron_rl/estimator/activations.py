"""Bytes that one layer keeps for its backward pass, operation by operation, for the local layer spec.

Per packed token: H hidden, Q query width, KV key (or value) width, F inner width of the MLP, N query heads, G key/value
heads, D head dim, ``e`` bytes per element, ``t`` tensor-parallel ranks, ``s`` = t under sequence parallelism, else 1.

====================  =====================================================================================
norms (two)           ``2 * ((4 + e) H + 4) / s``: the f32 input, the normed input, one f32 scale
inputs of QKV, fc1    ``2 e H / s``
rotary angles         ``4 e D``: cosine and sine for queries and for keys
attention, CUDA       ``(4 e Q + 4 N) / t``: query, key, value (key/value repeated to all query heads), output, log-sum
attention, CPU        ``(e (Q + 2 KV) + e Q + e KV + 2 e Q + 4 N) / t``: the value stays inside the fused projection
QK-norm               ``((4 + e) (Q + KV) + 4 (N + G)) / t``
MLP, CUDA             ``3 e F / t``: fused SwiGLU keeps its input (2 F) and fc2's input
MLP, CPU              ``5 e F / t``
====================  =====================================================================================

``4 + e`` is what f32 weights cost too: there the f32 input is the residual itself. Counted with autograd's saved-tensor
hooks on the CPU (see the tests); the CUDA rows follow from the same source with flash attention and fused SwiGLU.
"""

from __future__ import annotations

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.deployment import RoleSetup
from megatron_rl.estimator.parameters import stage_range


def layer_bytes_per_token(model: ModelConfig, role: RoleSetup, *, weight_bytes: int, on_gpu: bool) -> float:
    """Bytes one layer keeps per packed token on one rank, under the role's recomputation (not ``full``, see below)."""
    e, tensor = weight_bytes, role.layout.tensor
    scattered = tensor if role.layout.sequence_parallel else 1
    hidden = model.hidden_size
    norms = 2 * ((4 + e) * hidden + 4) / scattered
    inputs = 2 * e * hidden / scattered
    angles = 4 * e * model.kv_channels
    heads, groups = model.num_attention_heads, model.num_key_value_heads
    query, key = heads * model.kv_channels, groups * model.kv_channels
    projection = e * (query + 2 * key)
    if role.recompute == "selective":
        # Core attention keeps its inputs only; the value is a view of the fused projection.
        attention = projection + e * (query + key) + e * query
    elif on_gpu:
        attention = 4 * e * query + 4 * heads
    else:
        attention = projection + e * key + 3 * e * query + 4 * heads
    if model.qk_norm:
        attention += (4 + e) * (query + key) + 4 * (heads + groups)
    return norms + inputs + angles + (attention + _mlp_bytes(model, e, on_gpu)) / tensor


def _mlp_bytes(model: ModelConfig, e: int, on_gpu: bool) -> float:
    """Before the division by the tensor-parallel degree; a MoE layer also keeps its permuted tokens."""
    kept = 3 if on_gpu else 5
    if model.moe is None:
        return kept * e * model.intermediate_size
    active = model.moe.experts_per_token + model.moe.num_shared_experts
    permuted = 2 * e * model.hidden_size * model.moe.experts_per_token
    return kept * e * model.moe.expert_intermediate_size * active + permuted


def checkpoint_bytes_per_token(model: ModelConfig, role: RoleSetup, weight_bytes: int) -> float:
    """Bytes per packed token and layer under full recomputation: the layer's input."""
    scattered = role.layout.tensor if role.layout.sequence_parallel else 1
    return weight_bytes * model.hidden_size / scattered


def stage_activation_bytes(
    model: ModelConfig, role: RoleSetup, stage: int, *, weight_bytes: int, on_gpu: bool, num_micro_batches: int
) -> float:
    """Activations a stage holds at the worst moment of 1F1B: stage ``p`` of ``P`` has ``P - p`` micro-batches in flight.

    Full recomputation keeps layer inputs, and all of one layer while it is recomputed.
    """
    layers = len(stage_range(model, role.layout, stage))
    in_flight = min(role.layout.pipeline - stage, num_micro_batches)
    whole = layer_bytes_per_token(model, role, weight_bytes=weight_bytes, on_gpu=on_gpu)
    if role.recompute != "full":
        return role.micro_batch_tokens * whole * layers * in_flight
    kept = checkpoint_bytes_per_token(model, role, weight_bytes) * layers * in_flight
    return role.micro_batch_tokens * (kept + whole)


def forward_working_bytes(model: ModelConfig, role: RoleSetup, weight_bytes: int) -> float:
    """Most bytes alive at one time inside a layer of a pass without gradients: fc1's output, its SwiGLU, the residual."""
    inner = model.intermediate_size
    if model.moe is not None:
        inner = model.moe.expert_intermediate_size * (model.moe.experts_per_token + model.moe.num_shared_experts)
    per_token = weight_bytes * (3 * inner / role.layout.tensor + 2 * model.hidden_size)
    return role.micro_batch_tokens * per_token
