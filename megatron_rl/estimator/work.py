"""What a phase asks of one card, in units that a data sheet or a stopwatch prices: FLOPs, bytes, launches, iterations.

Per packed token and layer (H hidden, Q query width, KV key width, F inner width, ``e`` bytes per element), read and written:

==========================  ============================  =================================
part                        forward                       backward
==========================  ============================  =================================
norms, residual additions   ``10 e H``                    ``12 e H``
rotation, attention         ``e (4 Q + 4 KV)``            ``e (7 Q + 6 KV)``
SwiGLU                      ``3 e F``                     ``5 e F``
in- and outputs of GEMMs    ``e (4 H + 2 Q + 2 KV + 3 F)``  twice that
==========================  ============================  =================================

A micro-batch also reads a layer's weights once forward and once backward, and adds to its gradients (read and written).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.deployment import Deployment, RoleSetup
from megatron_rl.estimator.flops import attention_flops_per_square, matmul_parameters
from megatron_rl.estimator.parameters import rank_parameters
from megatron_rl.parallel.layout import padded_vocab_size

ATTENTION_BACKWARD = 2.5
"""Forwards that flash attention's backward pass costs: it computes the scores once more (Dao 2023, section 4.1)."""
LOGIT_BYTES_SEPARABLE, LOGIT_BYTES_RECOMPUTED, LOGIT_BYTES_FORWARD = 18, 22, 8
"""Read and written per logit by kernels.linear_logprob in bf16: f32 product, statistics, gradient, two products of it.
Forward alone: the f32 logit is written and read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Example: ``Work(matmul_flops=3e14, streamed_bytes=8e11, layer_passes=84)``. Of one card."""

    matmul_flops: float = 0.0
    """Of training and scoring; attention apart."""
    attention_flops: float = 0.0
    streamed_bytes: float = 0.0
    """Read and written by the layers and the head."""
    copied_bytes: float = 0.0
    """Read and written in long runs: optimizer steps, gradient sums, copies of weights."""
    layer_passes: float = 0.0
    """Layers entered by this process: once forward, twice backward, for each micro-batch. The host launches their kernels
    while the card computes, so these cost time only where the card has less to do."""
    decode_flops: float = 0.0
    """Products of the engine with as many rows as sequences run."""
    decode_bytes: float = 0.0
    """Weights and cache that decoding reads."""
    iterations: float = 0.0
    """Of the engine."""
    sampled_tokens: float = 0.0
    pushes: float = 0.0
    """Weight transfers."""
    samples: float = 0.0
    """That the step's bookkeeping handles: rewards, advantages, packing, logging."""

    def __add__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) + getattr(other, name) for name in WORK_KINDS})

    def times(self, factor: float) -> Work:
        """All of it, ``factor`` times."""
        return Work(**{name: getattr(self, name) * factor for name in WORK_KINDS})


NOTHING = Work()
WORK_KINDS = tuple(field.name for field in fields(Work))


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Documents of one pass over a role's share, sums over them."""

    tokens: float
    squared_tokens: float
    predicted_tokens: float
    """Meet the LM head: response tokens only."""
    micro_batches: float


def pass_work(deployment: Deployment, role: RoleSetup, documents: Documents, *, training: bool) -> Work:
    """Forward, or forward and backward, of one data-parallel share, per card of the role's model replica."""
    model, e = deployment.model, deployment.weight_bytes
    cards = role.layout.tensor * role.layout.pipeline
    layers = layers_work(model, documents, e, training=training)
    if training and role.recompute == "full":
        layers += layers_work(model, documents, e, training=False)
    elif training and role.recompute == "selective":
        layers += Work(attention_flops=attention_flops_per_square(model) * documents.squared_tokens)
    if training:
        weights = rank_parameters(model, role.layout, 0, role.head).total * cards
        layers += Work(copied_bytes=2 * weights * role.gradient_bytes * documents.micro_batches)
    mine = (layers + head_work(deployment, role, documents, training=training)).times(1 / cards)
    # Tensor-parallel ranks share a layer's work, but each launches all of it.
    return replace(mine, layer_passes=mine.layer_passes * role.layout.tensor)


def layers_work(model: ModelConfig, documents: Documents, e: int, *, training: bool) -> Work:
    """All layers of the whole model over ``documents``."""
    weights = matmul_parameters(model, "value") - model.hidden_size
    passes = 3 if training else 1
    attention = attention_flops_per_square(model) * documents.squared_tokens
    per_token = layer_stream_bytes(model, e, training=training)
    read = 2 if training else 1
    return Work(
        matmul_flops=2 * weights * documents.tokens * passes,
        attention_flops=attention * (1 + ATTENTION_BACKWARD if training else 1),
        streamed_bytes=model.num_layers * per_token * documents.tokens + read * weights * e * documents.micro_batches,
        layer_passes=model.num_layers * documents.micro_batches * passes,
    )


def layer_stream_bytes(model: ModelConfig, e: int, *, training: bool) -> float:
    """Bytes that one layer reads and writes per token; see the table above."""
    hidden = model.hidden_size
    query, key = model.num_attention_heads * model.kv_channels, model.num_key_value_heads * model.kv_channels
    inner = model.intermediate_size
    if model.moe is not None:
        inner = model.moe.expert_intermediate_size * (model.moe.experts_per_token + model.moe.num_shared_experts)
    products = 4 * hidden + 2 * query + 2 * key + 3 * inner
    forward = 10 * hidden + 4 * query + 4 * key + 3 * inner + products
    if not training:
        return e * forward
    return e * (forward + 12 * hidden + 7 * query + 6 * key + 5 * inner + 2 * products)


def head_work(deployment: Deployment, role: RoleSetup, documents: Documents, *, training: bool) -> Work:
    """The LM head over the predicted tokens: three products where the loss is separable, four where it is not."""
    if role.head == "value":
        return NOTHING
    model = deployment.model
    rows = padded_vocab_size(model.vocab_size, role.layout.tensor)
    logits = documents.predicted_tokens * rows
    products, touched = 1, LOGIT_BYTES_FORWARD
    if training and role.separable_loss:
        products, touched = 3, LOGIT_BYTES_SEPARABLE
    elif training:
        products, touched = 4, LOGIT_BYTES_RECOMPUTED
    return Work(matmul_flops=2 * products * logits * model.hidden_size, streamed_bytes=touched * logits)


def optimizer_step_work(deployment: Deployment, role: RoleSetup) -> Work:
    """One optimizer step on the first stage's rank: gradients zeroed, normed and read; state read and written; weights."""
    weights = rank_parameters(deployment.model, role.layout, 0, role.head).total
    shard = weights / (role.layout.data if role.distributed_optimizer else 1)
    touched = 2 * role.gradient_bytes + 2 * deployment.optimizer_bytes(role) + deployment.weight_bytes
    return Work(copied_bytes=weights * role.gradient_bytes + shard * touched)
