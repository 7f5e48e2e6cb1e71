"""Block-scaled FP8 equals vLLM's own quantisation, bit for bit. In a process of its own: importing vLLM starts threads."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.test_fp8_blocks import make_weight, quantised
from tests.support.distributed import run_distributed

pytestmark = pytest.mark.vllm
SHAPES = ((256, 384), (130, 200))
"""Whole blocks, and partial ones at both ends."""


def _equal(name: str) -> list[tuple[bool, bool]]:
    from vllm.utils.deep_gemm import per_block_cast_to_fp8

    found = []
    for shape in SHAPES:
        weight = make_weight(*shape, torch.device(name))
        values, scales = quantised(weight)
        theirs, their_scales = per_block_cast_to_fp8(weight.weight_NK, block_size=[128, 128], use_ue8m0=False)
        same = torch.equal(values.view(torch.uint8), theirs.view(torch.uint8))
        found.append((same, torch.equal(scales, their_scales)))
    return found


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_quantised_weight_equals_vllms(name: str) -> None:
    assert run_distributed(1, _equal, name, fresh=name == "cuda") == [[(True, True)] * len(SHAPES)]
