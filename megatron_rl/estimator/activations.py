"""Bytes that one layer keeps for its backward pass, operation by operation.

Per packed token: H hidden, Q query width, KV key (or value) width, F inner width of the MLP, N query heads, G key/value
heads, ``e`` bytes per element, ``t`` tensor-parallel ranks, ``s`` = t under sequence parallelism, else 1.

===================  =======================================================================================
norms, CUDA          ``2 (e H + 4) / s``: the residual, one f32 scale each
norms, CPU           ``2 ((4 + e) H + 4) / s``: the f32 input, the normed input, one f32 scale
inputs of QKV, fc1   ``2 e H / s``
attention, CUDA      ``(e (2 Q + 2 KV) + 4 N) / t``: rotated query and key, a copy of the value, output, log-sum
attention, CPU       ``(e (Q + 2 KV) + e (3 Q + KV) + 4 N) / t``: the value stays inside the fused projection
QK-norm, CUDA        ``(e (Q + 2 KV) + 4 (N + G)) / t``: the fused projection, one scale a head
QK-norm, CPU         ``((4 + e) (Q + KV) + 4 (N + G)) / t``
MLP, CUDA            ``3 e F / t``: fused SwiGLU keeps fc1's output, then fc2's input
MLP, CPU             ``5 e F / t``
===================  =======================================================================================

The CPU rows are counted with autograd's saved-tensor hooks (see the tests); the CUDA rows follow from what the fused
kernels save, under Transformer Engine's layers as under Megatron-Core's own. Rotation tables are shared by all layers.
"""

from __future__ import annotations

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.deployment import RoleSetup
from megatron_rl.estimator.parameters import stage_range


def layer_bytes_per_token(model: ModelConfig, role: RoleSetup, *, weight_bytes: int, on_gpu: bool) -> float:
    """Bytes one layer keeps per packed token on one rank, under the role's recomputation (not ``full``, see below)."""
    e, tensor, hidden = weight_bytes, role.layout.tensor, model.hidden_size
    scattered = tensor if role.layout.sequence_parallel else 1
    norms = 2 * ((e if on_gpu else 4 + e) * hidden + 4)
    inputs = 2 * e * hidden
    attention = _attention_bytes(model, role, e, on_gpu)
    return (norms + inputs) / scattered + (attention + _mlp_bytes(model, e, on_gpu)) / tensor


def _attention_bytes(model: ModelConfig, role: RoleSetup, e: int, on_gpu: bool) -> float:
    """Before the division by the tensor-parallel degree."""
    heads, groups = model.num_attention_heads, model.num_key_value_heads
    query, key = heads * model.kv_channels, groups * model.kv_channels
    projection = e * (query + 2 * key)
    log_sum = 4 * heads
    if role.recompute == "selective":
        # Core attention keeps its inputs, before rotation: views of the fused projection.
        kept = projection + e * query
    elif on_gpu:
        kept = e * (2 * query + 2 * key) + log_sum
    else:
        kept = projection + e * (3 * query + key) + log_sum
    if model.qk_norm:
        kept += (projection if on_gpu else (4 + e) * (query + key)) + 4 * (heads + groups)
    return kept


def _mlp_bytes(model: ModelConfig, e: int, on_gpu: bool) -> float:
    """Before the division by the tensor-parallel degree; a MoE layer also keeps its permuted tokens."""
    kept = (3 if on_gpu else 5) * e
    if model.moe is None:
        return kept * model.intermediate_size
    active = model.moe.experts_per_token + model.moe.num_shared_experts
    permuted = 2 * e * model.hidden_size * model.moe.experts_per_token
    return kept * model.moe.expert_intermediate_size * active + permuted


def checkpoint_bytes_per_token(model: ModelConfig, role: RoleSetup, weight_bytes: int) -> float:
    """Bytes per packed token and layer under full recomputation: the layer's input."""
    scattered = role.layout.tensor if role.layout.sequence_parallel else 1
    return weight_bytes * model.hidden_size / scattered


def layers_in_flight(model: ModelConfig, role: RoleSetup, stage: int, num_micro_batches: int) -> int:
    """Layers whose activations a stage holds at the worst moment, counted once per micro-batch in flight.

    1F1B: stage ``p`` of ``P`` has ``P - p`` micro-batches in flight. Interleaved over ``v`` chunks a stage: up to
    ``2 (P - p - 1) + (v - 1) P + 1`` chunks of ``1 / v`` of its layers (Narayanan et al. 2021, section 2.2.2).
    """
    layers, layout = len(stage_range(model, role.layout, stage)), role.layout
    behind, chunks = layout.pipeline - stage - 1, layout.virtual_pipeline
    if chunks == 1:
        return layers * min(behind + 1, num_micro_batches)
    in_flight = min(2 * behind + (chunks - 1) * layout.pipeline + 1, num_micro_batches * chunks)
    return -(-layers // chunks) * in_flight


def stage_activation_bytes(
    model: ModelConfig, role: RoleSetup, stage: int, *, weight_bytes: int, on_gpu: bool, num_micro_batches: int
) -> float:
    """Activations a stage holds at the worst moment. Full recomputation keeps layer inputs, and all of one layer."""
    whole = layer_bytes_per_token(model, role, weight_bytes=weight_bytes, on_gpu=on_gpu)
    layers = layers_in_flight(model, role, stage, num_micro_batches)
    if role.recompute != "full":
        return role.micro_batch_tokens * whole * layers
    kept = checkpoint_bytes_per_token(model, role, weight_bytes) * layers
    return role.micro_batch_tokens * (kept + whole)


def forward_working_bytes(model: ModelConfig, role: RoleSetup, weight_bytes: int) -> float:
    """Most bytes alive at one time inside a layer of a pass without gradients: fc1's output, its SwiGLU, the residual."""
    inner = model.intermediate_size
    if model.moe is not None:
        inner = model.moe.expert_intermediate_size * (model.moe.experts_per_token + model.moe.num_shared_experts)
    per_token = weight_bytes * (3 * inner / role.layout.tensor + 2 * model.hidden_size)
    return role.micro_batch_tokens * per_token
