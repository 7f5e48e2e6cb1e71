"""Seconds of collectives, from bytes, links and layouts. Ring algorithms throughout.

``n`` ranks, ``b`` bytes of the whole tensor, ``w`` bytes/s of a link, ``l`` seconds a message: a reduce-scatter or an
all-gather takes ``(n - 1) (b / n / w + l)``, an all-reduce both (Thakur et al. 2005, section 4).
"""

from __future__ import annotations

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.catalogue import Fabric, Gpu
from megatron_rl.parallel.layout import ParallelLayout


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


def data_parallel_s(weights: int, layout: ParallelLayout, gpu: Gpu, efficiency: float, gradient_bytes: int = 4) -> float:
    """One optimizer step: gradients reduced and scattered, 16-bit weights gathered, of ``weights`` per rank."""
    fabric = link(gpu, layout.tensor * layout.context * layout.data)
    ranks = layout.data * layout.context
    return all_gather_s(weights * gradient_bytes, ranks, fabric, efficiency) + all_gather_s(
        weights * 2, ranks, fabric, efficiency
    )


def pipeline_p2p_s(model: ModelConfig, layout: ParallelLayout, num_tokens: float, gpu: Gpu, efficiency: float) -> float:
    """Hidden states of ``num_tokens`` sent to the next stage; free without stages."""
    if layout.pipeline == 1:
        return 0.0
    fabric = link(gpu, layout.world_size)
    return num_tokens * model.hidden_size * 2 / (fabric.bytes_per_s * efficiency) + fabric.latency_s
