"""Names of parameters: one each, whichever layer spec built the module that holds it."""

from __future__ import annotations

import pytest

from megatron_rl.weights.names import NORMS_INSIDE_LINEARS, megatron_layer_rules, parameter_name
from tests.support.tiny_models import tiny_model


@pytest.mark.parametrize(
    ("module_name", "expected"),
    [
        ("decoder.layers.3.self_attention.linear_qkv.layer_norm_weight", "decoder.layers.3.input_layernorm.weight"),
        ("decoder.layers.0.mlp.linear_fc1.layer_norm_weight", "decoder.layers.0.pre_mlp_layernorm.weight"),
        ("decoder.layers.3.self_attention.linear_qkv.weight", "decoder.layers.3.self_attention.linear_qkv.weight"),
        ("decoder.layers.3.self_attention.q_layernorm.weight", "decoder.layers.3.self_attention.q_layernorm.weight"),
        ("decoder.final_layernorm.weight", "decoder.final_layernorm.weight"),
    ],
    ids=["qkv_norm", "fc1_norm", "weight", "head_norm", "final_norm"],
)
def test_parameter_name_matches_hand_computed(module_name: str, expected: str) -> None:
    assert parameter_name(module_name) == expected


def test_parameter_name_of_fused_norms_is_in_the_layer_rules() -> None:
    rules = {rule.local for rule in megatron_layer_rules(tiny_model(), 2)}
    assert {parameter_name(f"decoder.layers.2.{inside}") for inside in NORMS_INSIDE_LINEARS} <= rules
