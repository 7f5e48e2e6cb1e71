"""Rotary frequencies against transformers, and positions that restart in each packed document."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megatron_rl.config.model import RopeScalingConfig
from megatron_rl.models.rotary import packed_rotation, rotary_frequencies
from tests.support.tiny_models import tiny_model


@pytest.mark.parametrize("original", [64, 8192])
def test_rotary_frequencies_matches_reference(original: int) -> None:
    scaling = RopeScalingConfig(factor=8.0, original_max_position_embeddings=original)
    model = tiny_model().model_copy(update={"head_dim": 64, "rope_theta": 500000.0, "rope_scaling": scaling})
    config = LlamaConfig(
        head_dim=64,
        max_position_embeddings=original * 8,
        rope_parameters={"rope_theta": 500000.0, **scaling.model_dump()},
    )
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    torch.testing.assert_close(rotary_frequencies(model), expected, rtol=1e-6, atol=0.0)


def test_packed_rotation_matches_hand_computed() -> None:
    """Positions 0, 1, 2 and again 0, 1 at half and quarter turns per position."""
    frequencies, bounds = torch.tensor([math.pi, math.pi / 2]), torch.tensor([0, 3, 5], dtype=torch.int32)
    cos, sin = packed_rotation(frequencies, bounds, 5, torch.float32)
    torch.testing.assert_close(cos[:, 0], torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]))
    torch.testing.assert_close(cos[:, 1], torch.tensor([1.0, 0.0, -1.0, 1.0, 0.0]))
    torch.testing.assert_close(sin[:, 1], torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]))


def test_packed_rotation_rounds_to_dtype() -> None:
    frequencies, bounds = torch.tensor([1.0]), torch.tensor([0, 2], dtype=torch.int32)
    cos, _ = packed_rotation(frequencies, bounds, 2, torch.bfloat16)
    assert cos.dtype == torch.float32
    assert cos[1, 0] == torch.tensor(math.cos(1.0)).bfloat16().float() != math.cos(1.0)
