"""Exact speeds."""

from __future__ import annotations

import pytest

from megatron_rl.config.model import MlaConfig, ModelConfig, MoeConfig
from megatron_rl.observability.throughput import (
    forward_flops,
    matmul_parameters,
    mfu,
    throughput,
    tokens_per_second,
    train_flops,
)

SHORT, LONG = [512, 1024, 2048], [4096, 4096, 4096]


def make_model(**changes) -> ModelConfig:
    fields = {
        "name": "m",
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 10,
    }
    return ModelConfig(**(fields | changes))


LLAMA2_7B = make_model(
    num_layers=32, hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=32, vocab_size=32000
)
QWEN25_7B = make_model(
    num_layers=28, hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_key_value_heads=4, vocab_size=152064
)
QWEN3_30B_A3B = make_model(
    num_layers=48,
    hidden_size=2048,
    intermediate_size=6144,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=151936,
    moe=MoeConfig(num_experts=128, experts_per_token=8, expert_intermediate_size=768),
)


def test_throughput_matches_golden_values():
    assert tokens_per_second(600, 2.0) == 300
    assert throughput(600, 2.0, 1) == 300 and throughput(600, 2.0, 2) == 150


def test_matmul_parameters_matches_hand_computed():
    # q 8x8, k and v 8x4, o 8x8; three 8x16; head 8x10, and no embedding.
    assert matmul_parameters(make_model()) == 2 * (64 + 32 + 32 + 64 + 384) + 80


def test_forward_flops_matches_hand_computed():
    assert forward_flops(make_model(), [3, 5]) == 2 * 1232 * 8 + 2 * 2 * 4 * 2 * (9 + 25)


@pytest.mark.parametrize(
    ("model", "lengths", "tflop"),
    [
        (LLAMA2_7B, SHORT, 149.226491215872),
        (LLAMA2_7B, LONG, 536.372695793664),
        (QWEN25_7B, SHORT, 167.073690943488),
        (QWEN25_7B, LONG, 591.764889010176),
        (QWEN3_30B_A3B, SHORT, 78.593069678592),
        (QWEN3_30B_A3B, LONG, 306.570470621184),
    ],
    ids=["llama2-7b", "llama2-7b-long", "qwen2.5-7b", "qwen2.5-7b-long", "qwen3-30b-a3b", "qwen3-30b-a3b-long"],
)
def test_train_flops_matches_golden_values_without_the_embedding(model, lengths, tflop):
    """The golden numbers count the embedding lookup as a matrix product; we do not."""
    embedding = 6 * model.vocab_size * model.hidden_size * sum(lengths)
    assert train_flops(model, lengths) + embedding == pytest.approx(tflop * 1e12, rel=1e-12)


def test_mfu_matches_hand_computed():
    assert mfu(flops=4e12, seconds=2.0, num_devices=4, peak_flops_per_s=1e12) == 0.5


def test_forward_flops_rejects_latent_attention():
    mla = MlaConfig(q_lora_rank=4, kv_lora_rank=4, qk_nope_head_dim=2, qk_rope_head_dim=2, v_head_dim=2)
    with pytest.raises(ValueError, match=r"model\.mla"):
        forward_flops(make_model(mla=mla), [1])
