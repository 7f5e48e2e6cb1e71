"""Seconds of collectives and of weight transfers, from bytes, links and layouts. Ring algorithms throughout.

``n`` ranks, ``b`` bytes of the whole tensor, ``w`` bytes/s of a link, ``l`` seconds a message: a reduce-scatter or an
all-gather takes ``(n - 1) (b / n / w + l)``, an all-reduce both (Thakur et al. 2005, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.catalogue import Fabric, Gpu
from megatron_rl.estimator.parameters import engine_parameters, layer_parts, total_parameters
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors

MAX_PLANNED_RANKS = 64
"""Above, the closed form stands in for the planner, so that an estimate stays a matter of a second."""


def link(gpu: Gpu, span: int) -> Fabric:
    """The slowest link inside a group of ranks that covers ``span`` neighbouring ranks."""
    return gpu.intra_node if span <= gpu.gpus_per_node else gpu.inter_node


def all_gather_s(size_bytes: float, num_ranks: int, fabric: Fabric, efficiency: float) -> float:
    """Seconds in which every rank gets all ``size_bytes``; a reduce-scatter costs the same."""
    if num_ranks == 1:
        return 0.0
    return (num_ranks - 1) * (size_bytes / num_ranks / (fabric.bytes_per_s * efficiency) + fabric.latency_s)


def all_reduce_s(size_bytes: float, num_ranks: int, fabric: Fabric, efficiency: float) -> float:
    """Reduce-scatter and all-gather."""
    return 2 * all_gather_s(size_bytes, num_ranks, fabric, efficiency)


def tensor_parallel_s(
    model: ModelConfig, layout: ParallelLayout, num_tokens: float, gpu: Gpu, efficiency: float, *, backward: bool
) -> float:
    """Collectives of all layers of one stage over ``num_tokens``: two all-reduces a layer forward, two backward.

    Under sequence parallelism the same bytes travel as reduce-scatters and all-gathers.
    """
    once = all_reduce_s(num_tokens * model.hidden_size * 2, layout.tensor, link(gpu, layout.tensor), efficiency)
    return model.num_layers / layout.pipeline * 2 * once * (2 if backward else 1)


def expert_parallel_s(
    model: ModelConfig, layout: ParallelLayout, num_tokens: float, gpu: Gpu, efficiency: float, *, backward: bool
) -> float:
    """All-to-all there and back in each MoE layer of a stage; each token goes to ``experts_per_token`` ranks at most."""
    if model.moe is None or layout.expert == 1:
        return 0.0
    fabric = link(gpu, layout.expert * layout.etp)
    size_bytes = num_tokens * model.hidden_size * 2 * min(model.moe.experts_per_token, layout.expert)
    away = (layout.expert - 1) / layout.expert
    layers = (model.num_layers - model.moe.num_dense_layers) / layout.pipeline
    once = size_bytes * away / (fabric.bytes_per_s * efficiency) + fabric.latency_s
    return layers * 2 * once * (2 if backward else 1)


def data_parallel_s(weights: int, layout: ParallelLayout, gpu: Gpu, efficiency: float) -> float:
    """One optimizer step: f32 gradients reduced and scattered, 16-bit weights gathered, of ``weights`` per rank."""
    fabric = link(gpu, layout.tensor * layout.context * layout.data)
    ranks = layout.data * layout.context
    return all_gather_s(weights * 4, ranks, fabric, efficiency) + all_gather_s(weights * 2, ranks, fabric, efficiency)


def pipeline_p2p_s(model: ModelConfig, layout: ParallelLayout, num_tokens: float, gpu: Gpu, efficiency: float) -> float:
    """Hidden states of ``num_tokens`` sent to the next stage; free without stages."""
    if layout.pipeline == 1:
        return 0.0
    fabric = link(gpu, layout.world_size)
    return num_tokens * model.hidden_size * 2 / (fabric.bytes_per_s * efficiency) + fabric.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBytes:
    """What the busiest rank moves when the actor's weights go to the engine."""

    received_bytes: int
    copied_bytes: int
    bound_bytes: int
    planned: bool
    """By the planner; False = by the closed form, which is the lower bound."""


def sync_bytes(
    model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout, *, itemsize: int, budget_bytes: int, plan: bool
) -> SyncBytes:
    """Bytes of one weight transfer on the busiest rank; ``plan=False`` takes the closed form."""
    dense = model.moe is None and model.mla is None
    if not plan or not dense or train.world_size > MAX_PLANNED_RANKS:
        bound = received_bound_bytes(model, train, rollout.tensor, itemsize)
        needed = engine_parameters(model, rollout.tensor) * itemsize
        return SyncBytes(received_bytes=bound, copied_bytes=needed - bound, bound_bytes=bound, planned=False)
    planned = plan_reshard(
        logical_tensors(model),
        megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor)),
        train.ranks,
        vllm_rules_layout(model, rollout),
        train.ranks,
        itemsize=itemsize,
        budget_bytes=budget_bytes,
    )
    costs = planned.costs.values()
    return SyncBytes(
        received_bytes=max(max(cost.received_bytes, cost.sent_bytes) for cost in costs),
        copied_bytes=max(cost.copied_bytes for cost in costs),
        bound_bytes=max(cost.bound_bytes for cost in costs),
        planned=True,
    )


def received_bound_bytes(model: ModelConfig, train: ParallelLayout, rollout_tensor: int, itemsize: int) -> int:
    """Least bytes a colocated rank must receive where sizes divide: what it needs minus what it holds.

    ``W_cut (1/TP_r - 1/(PP max(TP, TP_r)))``, replicated weights ``W_rep (1 - 1/PP)``, and routed experts like cut
    weights with EP * ETP for TP.
    """
    parts = [layer_parts(model, layer) for layer in range(model.num_layers)]
    replicated = sum(part.replicated for part in parts) + model.hidden_size
    routed = sum(part.routed for part in parts)
    cut = total_parameters(model) - replicated - routed

    def missing(weights: int, train_degree: int) -> float:
        return weights * (1 / rollout_tensor - 1 / (train.pipeline * max(train_degree, rollout_tensor)))

    least = missing(cut, train.tensor) + missing(routed, train.expert * train.etp)
    return round((least + replicated * (1 - 1 / train.pipeline)) * itemsize)


def sync_s(size: SyncBytes, gpu: Gpu, span: int, *, link_efficiency: float, memory_efficiency: float) -> float:
    """Seconds of a transfer: the wire, then packing, unpacking and local copies, each read and written once."""
    fabric = link(gpu, span)
    wire = size.received_bytes / (fabric.bytes_per_s * link_efficiency)
    touched = 2 * size.copied_bytes + 4 * size.received_bytes
    return wire + touched / (gpu.memory_bytes_per_s * memory_efficiency)
