from __future__ import annotations

import pytest

from megatron_rl.config.loading import compose
from megatron_rl.estimator.parameters import total_parameters

PUBLISHED = {
    "tiny": 673_920 - 2 * 60 * 128,  # the recipe counts a vocabulary padded from 260 to 320 rows, twice
    "smollm2_135m": 134_515_008,
    "qwen2_5_0_5b": 494_032_768,
    "qwen2_5_1_5b": 1_543_714_304,
    "qwen2_7b": 7_615_616_512,
    "qwen3_8b": 8_190_735_360,
    "qwen3_30b_a3b": 30_532_122_624,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
}
"""Counts of the published checkpoints."""


@pytest.mark.parametrize("model,count", PUBLISHED.items())
def test_total_parameters_matches_reference(model: str, count: int) -> None:
    assert total_parameters(compose([f"model={model}"]).model) == count


def test_total_parameters_of_deepseek_v3_matches_reference() -> None:
    """671 billion, published without the extra prediction layer."""
    assert total_parameters(compose(["model=deepseek_v3"]).model) / 1e9 == pytest.approx(671, abs=0.5)
