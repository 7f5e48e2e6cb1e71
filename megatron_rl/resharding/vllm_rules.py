"""Where a vLLM engine stores each piece of the checkpoint, by rule: the torch-free twin of ``vllm_layout``."""

from __future__ import annotations

from functools import cache

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.resharding.cuts import Slice, cut_rule
from megatron_rl.resharding.spec import LayoutFn, RankFragments
from megatron_rl.weights.names import logical_tensors, vllm_rules

_VOCAB_MULTIPLE = 64


def vllm_padded_vocab_size(vocab_size: int) -> int:
    """Rows vLLM allocates for the vocabulary over all ranks, whatever the tensor-parallel degree."""
    return -(-vocab_size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE


def vllm_rules_layout(model: ModelConfig, layout: RolloutLayout) -> LayoutFn:
    """Return ``rank -> fragments`` of the engine shards, buffers named as in vLLM's ``named_parameters``.

    Data-parallel engines share one tuple of fragments. Raises ValueError naming the key where vLLM refuses the degree.
    """
    padded_vocab = vllm_padded_vocab_size(model.vocab_size)
    check_tensor_degree(model, layout.tensor)
    shapes = {tensor.name: tensor for tensor in logical_tensors(model)}
    rules = vllm_rules(model)
    ranks = frozenset(rank for group in layout.tensor_groups() for rank in group)

    @cache
    def of_place(tensor: int) -> RankFragments:
        place = Slice(tensor, layout.tensor)
        return tuple(f for rule in rules for f in cut_rule(rule, shapes, model, place, padded_vocab))

    def of_rank(rank: int) -> RankFragments:
        return of_place(layout.slot(rank)[1]) if rank in ranks else ()

    return of_rank


def check_tensor_degree(model: ModelConfig, tensor: int) -> None:
    """Raise ValueError naming the key, the rule and the legal degrees where vLLM cannot cut this shape."""
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
    extents = (model.num_attention_heads, model.intermediate_size, vocab)
    return [t for t in range(1, largest + 1) if all(n % t == 0 for n in extents) and (groups % t == 0 or t % groups == 0)]
