"""Where a vLLM engine stores each piece of the checkpoint, by rule: the torch-free twin of ``vllm_layout``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.resharding.cuts import LayerFragments, Slice, cut_rule
from megatron_rl.resharding.spec import Fragment, LayoutFn, LogicalTensor, RankFragments
from megatron_rl.weights.names import logical_tensors, vllm_end_rules, vllm_expert_rules, vllm_layer_rules

_VOCAB_MULTIPLE = 64


def vllm_padded_vocab_size(vocab_size: int) -> int:
    """Rows vLLM allocates for the vocabulary over all ranks, whatever the tensor-parallel degree."""
    return -(-vocab_size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE


def vllm_rules_layout(model: ModelConfig, layout: RolloutLayout) -> LayoutFn:
    """Return ``rank -> fragments`` of the engine shards, buffers named as in vLLM's ``named_parameters``.

    Data-parallel engines share one tuple of fragments. Raises ValueError naming the key where vLLM refuses the degree.
    """
    check_tensor_degree(model, layout)
    shapes = {tensor.name: tensor for tensor in logical_tensors(model)}
    slots = {rank: slot for slot, rank in enumerate(layout.ranks)}

    @cache
    def of_place(tensor: int, stage: int, expert: int) -> RankFragments:
        place, expert_place = Slice(tensor, layout.tensor), Slice(expert, layout.expert)
        return tuple(_fragments(model, shapes, layout.pipeline, stage, place, expert_place))

    def of_rank(rank: int) -> RankFragments:
        if rank not in slots:
            return ()
        engine_stage, tensor = divmod(slots[rank], layout.tensor)
        engine, stage = divmod(engine_stage, layout.pipeline)
        return of_place(tensor, stage, (engine * layout.tensor + tensor) % layout.expert)

    return of_rank


def engine_stage_layers(num_layers: int, stages: int) -> tuple[range, ...]:
    """Layers of each pipeline stage of an engine, as vLLM spreads them without ``VLLM_PP_LAYER_PARTITION``.

    What does not divide goes, one layer each, to the stages before the last, from the back. Example: 10 layers over 4
    stages are 2, 3, 3 and 2.
    """
    share, more = divmod(num_layers, stages)
    ranges, first = [], 0
    for stage in range(stages):
        last = first + share + (stages - 1 - more <= stage < stages - 1)
        ranges.append(range(first, last))
        first = last
    return tuple(ranges)


def _fragments(
    model: ModelConfig,
    shapes: Mapping[str, LogicalTensor],
    stages: int,
    stage: int,
    place: Slice,
    expert_place: Slice,
) -> Iterator[Fragment]:
    padded_vocab = vllm_padded_vocab_size(model.vocab_size)

    def of_layer(layer: int) -> Iterator[Fragment]:
        for rule in vllm_layer_rules(model, layer):
            yield from cut_rule(rule, shapes, model, place, padded_vocab)
        yield from _stacked_experts(model, shapes, layer, place, expert_place)

    fragments_of = LayerFragments(model, of_layer)
    for layer in engine_stage_layers(model.num_layers, stages)[stage]:
        yield from fragments_of(layer)
    for rule in vllm_end_rules(model, first=stage == 0, last=stage == stages - 1):
        yield from cut_rule(rule, shapes, model, place, padded_vocab)


def _stacked_experts(
    model: ModelConfig, shapes: Mapping[str, LogicalTensor], layer: int, place: Slice, expert_place: Slice
) -> Iterator[Fragment]:
    """Local experts one behind the other in one parameter: whole over the expert ranks, else each cut by TP."""
    if model.moe is None:
        return
    inner_place = place if expert_place.size == 1 else Slice(0, 1)
    for slot, expert in enumerate(local_experts(model.moe.num_experts, expert_place)):
        for rule in vllm_expert_rules(model, layer, expert):
            fragments = tuple(cut_rule(rule, shapes, model, inner_place, 0))
            shift = slot * sum(f.num_elements for f in fragments)
            yield from (replace(f, offset=f.offset + shift) for f in fragments)


def local_experts(num_experts: int, place: Slice) -> range:
    """Experts of one expert-parallel rank: consecutive, the first ranks taking one more where they do not divide."""
    share, more = divmod(num_experts, place.size)
    first = place.index * share + min(place.index, more)
    return range(first, first + share + (place.index < more))


def check_tensor_degree(model: ModelConfig, layout: RolloutLayout) -> None:
    """Raise ValueError naming the key, the rule and the legal degrees where vLLM cannot cut this shape."""
    tensor = layout.tensor
    if layout.expert == 1 and model.moe is not None and model.moe.expert_intermediate_size % tensor != 0:
        raise ValueError(
            f"rollout.tensor_parallel_size={tensor} does not divide model.moe.expert_intermediate_size="
            f"{model.moe.expert_intermediate_size}; spread whole experts over the ranks instead"
        )
    if tensor in vllm_tensor_degrees(model, tensor):
        return
    legal = vllm_tensor_degrees(model, model.num_attention_heads)
    raise ValueError(
        f"rollout.tensor_parallel_size={tensor} does not cut model {model.name}: it must divide num_attention_heads="
        f"{model.num_attention_heads}, intermediate_size={model.intermediate_size} and the padded vocabulary "
        f"{vllm_padded_vocab_size(model.vocab_size)}, and divide or be a multiple of num_key_value_heads="
        f"{model.num_key_value_heads}; legal here: {legal}"
    )


def vllm_tensor_degrees(model: ModelConfig, largest: int) -> list[int]:
    """Tensor-parallel degrees up to ``largest`` that vLLM accepts for this shape."""
    groups, vocab = model.num_key_value_heads, vllm_padded_vocab_size(model.vocab_size)
    shared = 0 if model.moe is None else model.moe.num_shared_experts * model.moe.expert_intermediate_size
    extents = (model.num_attention_heads, model.intermediate_size, vocab, shared)
    return [t for t in range(1, largest + 1) if all(n % t == 0 for n in extents) and (groups % t == 0 or t % groups == 0)]
