"""Tiny model shapes and a ragged random batch, shared by the distributed tests."""

from __future__ import annotations

import torch

from megatron_rl.config.model import ModelConfig
from megatron_rl.types.batches import MiniBatch
from megatron_rl.types.masks import response_mask

VOCAB_SIZE = 251


def tiny_model(*, tied: bool = True, qk_norm: bool = False, num_layers: int = 4) -> ModelConfig:
    """Four layers, GQA with 4 heads over 2 KV heads, a vocabulary no TP divides."""
    return ModelConfig(
        name="tiny",
        architecture="qwen3" if qk_norm else "qwen2",
        num_layers=num_layers,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        qkv_bias=not qk_norm,
        qk_norm=qk_norm,
    )


def ragged_batch(num_samples: int = 8, width: int = 24, seed: int = 0, garbage: bool = True) -> MiniBatch:
    """Samples of very different lengths, one with an empty response and one masked out; rubbish in the padding."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    prompts = torch.randint(1, 8, (num_samples,), generator=generator)
    responses = torch.randint(1, width - 8, (num_samples,), generator=generator)
    responses[1] = 0
    mask = response_mask(prompts, responses, width)
    counted = mask.clone()
    counted[2] = False
    tokens = torch.randint(VOCAB_SIZE, (num_samples, width), generator=generator)
    inside = torch.arange(width) < (prompts + responses)[:, None]
    fields = {name: random(num_samples, width) for name in ("old", "ref", "values", "advantages", "returns", "importance")}
    if garbage:
        tokens = tokens.where(inside, 10_000)
        fields = {name: x.where(mask, torch.nan) for name, x in fields.items()}
    return MiniBatch(
        tokens_BS=tokens,
        prompt_lengths_B=prompts,
        response_lengths_B=responses,
        response_mask_BS=counted,
        loss_weights_BS=counted / counted.sum(),
        old_logprobs_BS=fields["old"] * 0.1 - 5.5,
        ref_logprobs_BS=fields["ref"] * 0.1 - 5.5,
        values_BS=fields["values"],
        advantages_BS=fields["advantages"],
        returns_BS=fields["returns"],
        importance_weights_BS=fields["importance"].abs(),
        num_response_tokens=int(counted.sum()),
    )
