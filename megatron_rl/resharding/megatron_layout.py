"""Where a Megatron-Core role stores each piece of the checkpoint: pure arithmetic, no torch and no process group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.parallel.rank_order import RankOrder
from megatron_rl.resharding.cuts import LayerFragments, Slice, cut_rule
from megatron_rl.resharding.spec import Fragment, LayoutFn, RankFragments
from megatron_rl.weights.names import (
    MEGATRON_EMBEDDING,
    MEGATRON_FINAL_NORM,
    MEGATRON_OUTPUT,
    MEGATRON_TIED_OUTPUT,
    Rule,
    logical_tensors,
    megatron_expert_rules,
    megatron_layer_rules,
)


def stage_layers(num_layers: int, layout: ParallelLayout, stage: int) -> tuple[tuple[int, ...], ...]:
    """Global layer indices of each model chunk of a pipeline stage.

    Chunk ``c`` of stage ``p`` is block ``c * PP + p`` of equal blocks. Example: 8 layers, PP2, VPP2, stage 0 holds
    ``((0, 1), (4, 5))``. Raises ValueError where the layers do not divide.
    """
    blocks = layout.pipeline * layout.virtual_pipeline
    if num_layers % blocks != 0:
        legal = [n for n in range(1, num_layers + 1) if num_layers % n == 0]
        raise ValueError(
            f"parallel.pipeline * parallel.virtual_pipeline = {layout.pipeline} * {layout.virtual_pipeline} = {blocks} "
            f"does not divide model.num_layers={num_layers}; use a product out of {legal}"
        )
    size = num_layers // blocks
    starts = [(chunk * layout.pipeline + stage) * size for chunk in range(layout.virtual_pipeline)]
    return tuple(tuple(range(start, start + size)) for start in starts)


def megatron_layout(
    model: ModelConfig,
    layout: ParallelLayout,
    padded_vocab: int,
    *,
    value_head: bool = False,
) -> LayoutFn:
    """Return ``rank -> fragments`` of a Megatron-Core role.

    ``value_head``: a critic, whose last stage has no vocabulary output. Data- and context-parallel replicas share one
    tuple of fragments (the same object), which the planner uses to plan replicas once.
    Raises ValueError naming the key where a degree does not divide the shape.
    """
    return megatron_layouts(model, layout, padded_vocab, value_head=value_head)(layout.order)


def megatron_layouts(
    model: ModelConfig,
    layout: ParallelLayout,
    padded_vocab: int,
    *,
    value_head: bool = False,
) -> Callable[[RankOrder | None], LayoutFn]:
    """Return ``rank order -> megatron_layout``; the layouts of all orders share one tuple of fragments per place."""
    check_tensor_degree(model, layout.tensor, padded_vocab)
    _check_expert_degrees(model, layout)
    shapes = {tensor.name: tensor for tensor in logical_tensors(model)}

    @cache
    def of_place(tensor: int, stage: int, expert: int, expert_tensor: int) -> RankFragments:
        place, inner_place = Slice(tensor, layout.tensor), Slice(expert_tensor, layout.etp)
        expert_place = Slice(expert, layout.expert)

        def cut(rules: Iterable[Rule], place: Slice, padded_vocab: int = 0) -> Iterator[Fragment]:
            return (f for rule in rules for f in cut_rule(rule, shapes, model, place, padded_vocab))

        dense = LayerFragments(model, lambda layer: cut(megatron_layer_rules(model, layer), place))
        experts = LayerFragments(model, lambda layer: cut(_expert_rules(model, layer, expert_place), inner_place))
        layers = [layer for chunk in stage_layers(model.num_layers, layout, stage) for layer in chunk]
        return (
            *cut((MEGATRON_EMBEDDING,) if stage == 0 else (), place, padded_vocab),
            *(f for layer in layers for f in dense(layer)),
            *cut(_end_rules(model, layout, stage, value_head), place, padded_vocab),
            *(f for layer in layers for f in experts(layer)),
        )

    def in_order(order: RankOrder | None) -> LayoutFn:
        ordered = replace(layout, order=order)

        def of_rank(rank: int) -> RankFragments:
            if rank not in layout.ranks:
                return ()
            place = ordered.coordinates(rank)
            if model.moe is None:
                return of_place(place.tensor, place.pipeline, 0, 0)
            expert, expert_tensor = divmod(ordered.place_in_stage(rank), layout.etp)
            return of_place(place.tensor, place.pipeline, expert % layout.expert, expert_tensor)

        return of_rank

    stage_layers(model.num_layers, layout, 0)
    return in_order


def check_tensor_degree(model: ModelConfig, tensor: int, padded_vocab: int) -> None:
    """Raise ValueError naming the key, the rule and the legal degrees where Megatron-Core cannot cut this shape."""
    if tensor in megatron_tensor_degrees(model, tensor) and padded_vocab % tensor == 0:
        return
    legal = megatron_tensor_degrees(model, model.num_attention_heads)
    raise ValueError(
        f"parallel.tensor={tensor} does not cut model {model.name}: it must divide num_attention_heads="
        f"{model.num_attention_heads}, intermediate_size={model.intermediate_size}, the widths of latent attention and "
        f"shared experts where there are any, and the padded vocabulary {padded_vocab}, and divide or be a multiple of "
        f"num_key_value_heads={model.num_key_value_heads}; "
        f"legal here: {legal}"
    )


def _check_expert_degrees(model: ModelConfig, layout: ParallelLayout) -> None:
    if model.moe is None:
        return
    experts, inner = model.moe.num_experts, model.moe.expert_intermediate_size
    if experts % layout.expert != 0:
        raise ValueError(f"parallel.expert={layout.expert} does not divide model.moe.num_experts={experts}")
    if inner % layout.etp != 0:
        raise ValueError(f"parallel.expert_tensor={layout.etp} does not divide model.moe.expert_intermediate_size={inner}")


def megatron_tensor_degrees(model: ModelConfig, largest: int) -> list[int]:
    """Tensor-parallel degrees up to ``largest`` that Megatron-Core accepts for this shape.

    Latent attention without Transformer Engine cuts the projections to latent space by rows, too.
    """
    groups = model.num_key_value_heads
    extents = [model.num_attention_heads, model.intermediate_size]
    if model.mla is not None:
        extents += [model.mla.q_lora_rank, model.mla.kv_lora_rank + model.mla.qk_rope_head_dim]
    if model.moe is not None:
        extents.append(model.moe.num_shared_experts * model.moe.expert_intermediate_size)
    return [t for t in range(1, largest + 1) if all(n % t == 0 for n in extents) and (groups % t == 0 or t % groups == 0)]


def _expert_rules(model: ModelConfig, layer: int, place: Slice) -> Iterator[Rule]:
    """Routed experts of one expert-parallel rank: consecutive ones."""
    if model.moe is None:
        return
    for slot, expert in enumerate(range(*place.of(model.moe.num_experts))):
        yield from megatron_expert_rules(model, layer, expert, slot)


def _end_rules(model: ModelConfig, layout: ParallelLayout, stage: int, value_head: bool) -> Iterator[Rule]:
    """What follows the layers on the last stage."""
    if stage != layout.pipeline - 1:
        return
    yield MEGATRON_FINAL_NORM
    if value_head:
        return
    if not model.tie_word_embeddings:
        yield MEGATRON_OUTPUT
    elif layout.pipeline > 1:
        yield MEGATRON_TIED_OUTPUT
