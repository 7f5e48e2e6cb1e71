"""Block-scaled FP8: against hand-computed blocks and the reference; against vLLM in tests/resharding/test_fp8_of_vllm.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.fp8_blocks import BLOCK, FP8, BlockScaled, prepare_block_scales, prepare_quantise
from kernels.fp8_blocks.reference import block_amax_reference, quantise_reference, scales_from_amax
from megatron_rl.config.rollout import FP8_BLOCK


def make_weight(rows: int, columns: int, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> BlockScaled:
    """Values over five orders of magnitude, a block of zeros."""
    generator = torch.Generator().manual_seed(rows + columns)
    weight = torch.randn(rows, columns, generator=generator) * torch.logspace(-4, 1, columns)
    weight[:128, :128] = 0
    blocks = (-(-rows // 128), -(-columns // 128))
    with device:
        return BlockScaled(weight.to(device, dtype), torch.zeros(blocks), torch.zeros(blocks))


def views_of(weight: Tensor) -> list[Tensor]:
    """All of it; rows from the middle; columns, which are strided."""
    return [weight, weight[100:101], weight[128:, 128:200], weight[3:200:5, 7]]


def quantised(weight: BlockScaled) -> tuple[Tensor, Tensor]:
    prepare_block_scales([weight]).run()
    values = torch.empty(weight.weight_NK.shape, dtype=FP8, device=weight.weight_NK.device)
    prepare_quantise([weight.weight_NK], [values], [weight]).run()
    return values, weight.scales


def test_scales_match_hand_computed() -> None:
    weight = torch.zeros(130, 256)
    weight[0, 0], weight[129, 255], weight[5, 200] = -448.0, 0.5, 7.0
    amax = block_amax_reference(weight)
    assert amax.tolist() == [[448.0, 7.0], [0.0, 0.5]]
    assert scales_from_amax(amax)[0].tolist() == [1.0, 0.015625]
    assert scales_from_amax(amax)[1, 0] == pytest.approx(1e-4 / 448)


def test_quantise_matches_hand_computed() -> None:
    weight = torch.zeros(128, 256)
    weight[0, 0], weight[0, 1], weight[0, 128], weight[1, 128] = 448.0, 17.3, 896.0, -3.0
    block = BlockScaled(weight, torch.zeros(1, 2), torch.zeros(1, 2))
    values, scales = quantised(block)
    # e4m3 has steps of 2 between 16 and 32.
    assert [float(values[0, 0]), float(values[0, 1]), float(values[0, 128]), float(values[1, 128])] == [448, 18, 448, -1.5]
    assert scales.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_kernels_match_reference(dtype: torch.dtype, device: torch.device) -> None:
    from kernels.fp8_blocks.triton import QuantiseTable, ScalesTable

    weights = [make_weight(256, 384, device, dtype), make_weight(200, 330, device, dtype)]
    ScalesTable(weights).run()
    sources, mine, theirs, owners = [], [], [], []
    for weight in weights:
        expected = scales_from_amax(block_amax_reference(weight.weight_NK))
        assert torch.equal(weight.scales, expected)
        assert torch.equal(weight.inverse_scales, 1.0 / expected)
        for view in views_of(weight.weight_NK):
            sources.append(view)
            owners.append(weight)
            mine.append(torch.zeros(view.shape, device=device).to(FP8))
            theirs.append(torch.zeros(view.shape, device=device).to(FP8))
            first = view.storage_offset() - weight.weight_NK.storage_offset()
            quantise_reference(view, theirs[-1], weight.inverse_scales, first, weight.weight_NK.shape[1])
    QuantiseTable(sources, mine, owners).run()
    for ours, reference in zip(mine, theirs, strict=True):
        assert _codes_differing(ours, reference) == 0


def _codes_differing(ours: Tensor, reference: Tensor) -> int:
    mine, theirs = ours.view(torch.uint8), reference.view(torch.uint8)
    differs = mine != theirs
    if not ours.is_cuda:
        # The interpreter loses the carry where rounding up reaches the next power of two, and truncates subnormals.
        differs &= (theirs % 8 != 0) & (theirs // 8 % 16 != 0)
    return int(differs.sum())


def test_block_is_the_one_that_layouts_are_checked_against() -> None:
    assert BLOCK == FP8_BLOCK
