"""Which layers are built where: the choice, and what each spec names."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.training import RecomputeConfig
from megatron_rl.models.attention import PackedCausalAttention
from megatron_rl.models.gpt import transformer_config
from megatron_rl.models.layer_spec import block_spec
from megatron_rl.models.transformer_impl import LayerImplementation, choose_implementation
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform
from megatron_rl.weights.names import NORMS_INSIDE_LINEARS
from tests.support.tiny_models import tiny_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def _model(asked: str, hidden_size: int = 1536) -> ModelConfig:
    return tiny_model().model_copy(update={"transformer_impl": asked, "hidden_size": hidden_size})


def _platform(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Platform:
    return Platform(device, dtype, "gloo", None)


@pytest.mark.parametrize(
    ("model", "platform", "fault", "expected"),
    [
        (_model("auto"), _platform(CUDA), None, "transformer_engine"),
        (_model("auto"), _platform(CUDA), "not installed", "local"),
        (_model("auto"), _platform(CPU), None, "local"),
        (_model("auto", hidden_size=896), _platform(CUDA), None, "local"),
        (_model("auto"), _platform(CUDA, torch.float32), None, "local"),
        (_model("local"), _platform(CUDA), None, "local"),
        (_model("transformer_engine", hidden_size=32), _platform(CUDA, torch.float32), None, "transformer_engine"),
    ],
    ids=["auto", "absent", "cpu", "narrow", "f32", "local", "asked"],
)
def test_choose_implementation_matches_hand_computed(
    model: ModelConfig, platform: Platform, fault: str | None, expected: LayerImplementation
) -> None:
    assert choose_implementation(model, platform, fault) == expected


@pytest.mark.parametrize(
    ("device", "fault", "reason"),
    [(CPU, None, "CUDA only"), (CUDA, "not installed", "not installed")],
    ids=["cpu", "absent"],
)
def test_choose_implementation_rejects_what_cannot_run(device: torch.device, fault: str | None, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.transformer_impl=transformer_engine.*{reason}.*auto or local"):
        choose_implementation(_model("transformer_engine"), _platform(device), fault)


@pytest.mark.parametrize(
    ("dtype", "implementation", "ours"),
    [
        (torch.bfloat16, "transformer_engine", False),
        (torch.float32, "transformer_engine", True),
        (torch.bfloat16, "local", True),
    ],
    ids=["te_bf16", "te_f32", "local"],
)
def test_block_spec_names_an_attention_that_takes_the_dtype(
    dtype: torch.dtype, implementation: LayerImplementation, ours: bool
) -> None:
    """Transformer Engine's packed attention computes in half precision only."""
    config = transformer_config(tiny_model(), ParallelLayout(), _platform(CPU, dtype), RecomputeConfig(), implementation)
    layer = block_spec(config, 2, implementation).layer_specs[0].submodules
    attention = layer.self_attention.submodules.core_attention.keywords["attention"]
    assert (attention is PackedCausalAttention) is ours


def test_block_spec_of_transformer_engine_saves_norms_under_our_names() -> None:
    platform = Platform(CPU, torch.bfloat16, "gloo", None)
    config = transformer_config(tiny_model(), ParallelLayout(), platform, RecomputeConfig(), "transformer_engine")
    spec = block_spec(config, 2, "transformer_engine")
    assert len(spec.layer_specs) == 2
    assert spec.layer_specs[0].submodules.sharded_state_dict_keys_map == NORMS_INSIDE_LINEARS
