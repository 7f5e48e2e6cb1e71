"""Chosen placements reach the lower bounds of the colocated table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.permutation import Overlaps, choose_permutation
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from tests.resharding.shapes import plan_sync
from tests.resharding.test_planner import QWEN3_8B

TABLE = {
    "tp2dp4_to_tp8": (ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=8), 0.0),
    "tp2dp4_to_tp4dp2": (ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=4, data=2), 0.0),
    "tp4dp2_to_tp2dp4": (ParallelLayout(tensor=4, data=2), RolloutLayout(tensor=2, data=4), 4.10),
    "tp8_to_tp2dp4": (ParallelLayout(tensor=8), RolloutLayout(tensor=2, data=4), 6.14),
    "tp2pp2dp2_to_tp4dp2": (ParallelLayout(tensor=2, pipeline=2, data=2), RolloutLayout(tensor=4, data=2), 2.05),
    "tp4pp2_to_tp8": (ParallelLayout(tensor=4, pipeline=2), RolloutLayout(tensor=8), 1.02),
}


@pytest.mark.parametrize("case", TABLE)
def test_choose_permutation_matches_hand_computed(case: str) -> None:
    """Mean GB received per rank of a Qwen3-8B shape in bf16 equals the closed-form bound."""
    train, rollout, mean_gb = TABLE[case]
    source, destination = megatron_layout(QWEN3_8B, train, 151936), vllm_rules_layout(QWEN3_8B, rollout)
    chosen = choose_permutation(Overlaps(source, destination), range(8), 8)
    assert sorted(chosen) == list(range(8))
    plan = plan_sync(QWEN3_8B, train, replace(rollout, permutation=chosen), itemsize=2, budget_bytes=256 << 20)
    assert plan.received_bytes / 8 / 1e9 == pytest.approx(mean_gb, abs=0.006)


def test_choose_permutation_stays_in_node() -> None:
    train, rollout = ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=4, data=2)
    source, destination = megatron_layout(QWEN3_8B, train, 151936), vllm_rules_layout(QWEN3_8B, rollout)
    assert choose_permutation(Overlaps(source, destination), range(8), 4) == (0, 2, 1, 3, 4, 6, 5, 7)


def test_choose_permutation_keeps_natural_order_on_ties() -> None:
    source = megatron_layout(QWEN3_8B, ParallelLayout(tensor=2), 151936)
    assert choose_permutation(Overlaps(source, vllm_rules_layout(QWEN3_8B, RolloutLayout(data=2))), range(2), 8) == (0, 1)
