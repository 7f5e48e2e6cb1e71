"""FLOPs against counts by hand and against published numbers."""

from __future__ import annotations

import pytest

from megatron_rl.config.model import MlaConfig, ModelConfig, MoeConfig
from megatron_rl.estimator.flops import decode_flops, forward_flops, matmul_parameters, train_flops

SHORT, LONG = [512, 1024, 2048], [4096, 4096, 4096]


def make_model(**changes: object) -> ModelConfig:
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


def test_matmul_parameters_matches_hand_computed() -> None:
    # q 8x8, k and v 8x4, o 8x8; three 8x16; head 8x10, and no embedding.
    assert matmul_parameters(make_model()) == 2 * (64 + 32 + 32 + 64 + 384) + 80


def test_matmul_parameters_of_a_critic_matches_hand_computed() -> None:
    assert matmul_parameters(make_model(), "value") == 2 * (64 + 32 + 32 + 64 + 384) + 8


def test_matmul_parameters_of_a_moe_matches_hand_computed() -> None:
    moe = MoeConfig(num_experts=6, experts_per_token=2, expert_intermediate_size=4, num_shared_experts=1, num_dense_layers=1)
    # One dense layer, one with a router 8x6 and three active experts of three 8x4.
    assert matmul_parameters(make_model(moe=moe)) == 2 * 192 + 384 + (48 + 3 * 96) + 80


def test_forward_flops_matches_hand_computed() -> None:
    assert forward_flops(make_model(), [3, 5]) == 2 * 1232 * 8 + 2 * 2 * 4 * 2 * (9 + 25)


def test_forward_flops_of_latent_attention_matches_hand_computed() -> None:
    mla = MlaConfig(q_lora_rank=6, kv_lora_rank=5, qk_nope_head_dim=2, qk_rope_head_dim=1, v_head_dim=3)
    # Query 8x6 and 6x(4*3), key/value 8x(5+1) and 5x(4*(2+3)), output (4*3)x8.
    attention = 48 + 72 + 48 + 100 + 96
    expected = 2 * (2 * (attention + 384) + 80) * 3 + 2 * 4 * (2 + 1 + 3) * 9
    assert forward_flops(make_model(mla=mla), [3]) == expected


def test_decode_flops_matches_hand_computed() -> None:
    # Every weight once, and one query row against 5 keys and 5 values in 2 layers of 4 heads of 2.
    assert decode_flops(make_model(), 5) == 2 * 1232 + 2 * 2 * 4 * 2 * 2 * 5


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
def test_train_flops_matches_golden_values_without_the_embedding(model: ModelConfig, lengths: list[int], tflop: float) -> None:
    """The golden numbers count the embedding lookup as a matrix product; we do not."""
    embedding = 6 * model.vocab_size * model.hidden_size * sum(lengths)
    assert train_flops(model, lengths) + embedding == pytest.approx(tflop * 1e12, rel=1e-12)
