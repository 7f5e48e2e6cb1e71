"""Which layers are built where: the choice, and what each spec names."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.config.model import TransformerImpl
from megatron_rl.config.training import RecomputeConfig
from megatron_rl.models.gpt import transformer_config
from megatron_rl.models.layer_spec import block_spec
from megatron_rl.models.transformer_impl import LayerImplementation, choose_implementation
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform
from megatron_rl.weights.names import NORMS_INSIDE_LINEARS
from tests.support.tiny_models import tiny_model

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("asked", "device", "fault", "expected"),
    [
        ("auto", CUDA, None, "transformer_engine"),
        ("auto", CUDA, "not installed", "local"),
        ("auto", CPU, None, "local"),
        ("local", CUDA, None, "local"),
        ("transformer_engine", CUDA, None, "transformer_engine"),
    ],
    ids=["auto", "auto_absent", "auto_cpu", "local", "asked"],
)
def test_choose_implementation_matches_hand_computed(
    asked: TransformerImpl, device: torch.device, fault: str | None, expected: LayerImplementation
) -> None:
    assert choose_implementation(asked, device, fault) == expected


@pytest.mark.parametrize(
    ("device", "fault", "reason"),
    [(CPU, None, "CUDA only"), (CUDA, "not installed", "not installed")],
    ids=["cpu", "absent"],
)
def test_choose_implementation_rejects_what_cannot_run(device: torch.device, fault: str | None, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.transformer_impl=transformer_engine.*{reason}.*auto or local"):
        choose_implementation("transformer_engine", device, fault)


def test_block_spec_of_transformer_engine_saves_norms_under_our_names() -> None:
    platform = Platform(CPU, torch.bfloat16, "gloo", None)
    config = transformer_config(tiny_model(), ParallelLayout(), platform, RecomputeConfig(), "transformer_engine")
    spec = block_spec(config, 2, "transformer_engine")
    assert len(spec.layer_specs) == 2
    assert spec.layer_specs[0].submodules.sharded_state_dict_keys_map == NORMS_INSIDE_LINEARS
