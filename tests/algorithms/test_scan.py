"""The reverse linear recurrence."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.algorithms.scan import _doubling, reverse_scan


@pytest.mark.parametrize("scan", [reverse_scan, _doubling], ids=["cpu", "other-devices"])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 63, 64, 65])
def test_reverse_scan_matches_reference(length, scan):
    generator = torch.Generator().manual_seed(length)
    decay, inputs = torch.rand(2, 3, length, generator=generator, dtype=torch.float64)
    expected, carry = torch.zeros_like(inputs), torch.zeros(3, dtype=torch.float64)
    for s in reversed(range(length)):
        carry = inputs[:, s] + decay[:, s] * carry
        expected[:, s] = carry
    torch.testing.assert_close(scan(decay, inputs), expected)
