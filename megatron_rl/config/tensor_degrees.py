"""Tensor-parallel degrees that a model's shape allows."""

from __future__ import annotations

from megatron_rl.config.model import ModelConfig

VOCAB_MULTIPLE = 64
"""The rollout engine pads the vocabulary to a multiple of this, whatever its degree."""


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


def training_tensor_degrees(model: ModelConfig) -> list[int]:
    """Degrees that cut heads, key/value heads and MLP evenly; the vocabulary is padded to fit any of them."""
    key_value_heads = model.num_attention_heads if model.mla is not None else model.num_key_value_heads
    extents = (model.num_attention_heads, key_value_heads, model.intermediate_size)
    return [t for t in divisors(key_value_heads) if all(extent % t == 0 for extent in extents)]


def rollout_tensor_degrees(model: ModelConfig) -> list[int]:
    """Degrees the engine accepts; unlike in training, a key/value head may be held by several ranks."""
    padded_vocab = -(-model.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    extents = (model.num_attention_heads, model.intermediate_size, padded_vocab)
    key_value_heads = model.num_key_value_heads
    return [
        t
        for t in divisors(model.num_attention_heads)
        if all(extent % t == 0 for extent in extents) and (key_value_heads % t == 0 or t % key_value_heads == 0)
    ]
