"""Chosen placements reach the lower bounds of the colocated table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.permutation import Overlaps, choose_permutation
from megatron_rl.resharding.placement import placements
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


@pytest.mark.parametrize("case", ["tp2dp4_to_tp8", "tp2dp4_to_tp4dp2", "tp2pp2dp2_to_tp4dp2", "tp4pp2_to_tp8"])
def test_choose_rank_order_reaches_the_bound(case: str) -> None:
    """The training grid in another order receives what free engine shards would, and so does the plan."""
    train, rollout, mean_gb = TABLE[case]
    placed = placements(QWEN3_8B, train, rollout, 8)
    assert placed["run"].total_missing == placed["best"].total_missing < placed["natural"].total_missing
    plan = plan_sync(QWEN3_8B, placed["run"].train, rollout, itemsize=2, budget_bytes=256 << 20)
    assert plan.received_bytes == placed["run"].total_missing * 2
    assert plan.received_bytes / 8 / 1e9 == pytest.approx(mean_gb, abs=0.006)


def test_choose_rank_order_matches_hand_computed() -> None:
    placed = placements(QWEN3_8B, *TABLE["tp2dp4_to_tp8"][:2], 8)
    assert placed["run"].train.order == (("data", 4), ("tensor", 2))


def test_choose_rank_order_keeps_nodes() -> None:
    """Four ranks a node: the data rank that counts nodes stays the slowest."""
    placed = placements(QWEN3_8B, ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=4, data=2), 4)
    assert placed["run"].train.order == (("data", 2), ("tensor", 2), ("data", 2))


def test_choose_rank_order_reduces_to_natural() -> None:
    """Where nothing is gained, where no order of a run helps, and where engines are on other ranks."""
    for rollout in (RolloutLayout(tensor=2, data=4), RolloutLayout(tensor=2, data=4, offset=8)):
        placed = placements(QWEN3_8B, ParallelLayout(tensor=4, data=2), rollout, 8)
        assert placed["run"].train.order is None
    assert placed["best"] is placed["natural"]
