"""Exact speeds."""

from __future__ import annotations

from megatron_rl.observability.throughput import mfu, throughput, tokens_per_second


def test_throughput_matches_golden_values():
    assert tokens_per_second(600, 2.0) == 300
    assert throughput(600, 2.0, 1) == 300 and throughput(600, 2.0, 2) == 150


def test_mfu_matches_hand_computed():
    assert mfu(flops=4e12, seconds=2.0, num_devices=4, peak_flops_per_s=1e12) == 0.5
