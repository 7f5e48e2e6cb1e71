"""Rotary frequencies against transformers, and positions that restart in each packed document."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megatron_rl.config.model import RopeScalingConfig
from megatron_rl.models.rotary import packed_angles, rotary_frequencies
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


def test_packed_angles_matches_hand_computed() -> None:
    angles = packed_angles(torch.tensor([1.0, 0.5]), torch.tensor([0, 3, 5], dtype=torch.int32), 5)
    assert angles.shape == (5, 1, 4)
    assert angles[:, 0, 0].tolist() == [0.0, 1.0, 2.0, 0.0, 1.0]
    assert angles[:, 0, 1].tolist() == [0.0, 0.5, 1.0, 0.0, 0.5]
    assert torch.equal(angles[..., :2], angles[..., 2:])
