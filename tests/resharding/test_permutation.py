"""Chosen placements reach the lower bounds of the colocated table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.parallel.rank_order import RankOrder
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.permutation import Overlaps, choose_permutation
from megatron_rl.resharding.placement import placements
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from tests.resharding.shapes import plan_sync, tiny_model
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


@pytest.mark.parametrize("case", TABLE)
def test_choose_rank_orders_reach_the_bound(case: str) -> None:
    """Both grids in orders of their own receive what free engine shards would, and so does the plan."""
    train, rollout, mean_gb = TABLE[case]
    placed = placements(QWEN3_8B, train, rollout, 8)
    run = placed["run"]
    assert run.total_missing == placed["best"].total_missing < placed["natural"].total_missing
    plan = plan_sync(QWEN3_8B, run.train, run.rollout, itemsize=2, budget_bytes=256 << 20)
    assert plan.received_bytes == run.total_missing * 2
    assert plan.received_bytes / 8 / 1e9 == pytest.approx(mean_gb, abs=0.006)


ORDERS = {
    "tp2dp4_to_tp8": ((("data", 4), ("tensor", 2)), None),
    "tp8_to_tp2dp4": (None, (("data", 4), ("tensor", 2))),
    "tp4dp2_to_tp2dp4": (None, (("data", 2), ("tensor", 2), ("data", 2))),
}


@pytest.mark.parametrize("case", ORDERS)
def test_choose_rank_orders_matches_hand_computed(case: str) -> None:
    """More tensor parallelism in training: its natural groups are consecutive, and the engines' stride over them."""
    run = placements(QWEN3_8B, *TABLE[case][:2], 8)["run"]
    assert (run.train.order, run.rollout.order) == ORDERS[case]


def test_choose_rank_orders_keep_nodes() -> None:
    """Four ranks a node: the data rank that counts nodes stays the slowest."""
    placed = placements(QWEN3_8B, ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=4, data=2), 4)
    assert placed["run"].train.order == (("data", 2), ("tensor", 2), ("data", 2))
    engines = placements(QWEN3_8B, ParallelLayout(tensor=4, data=2), RolloutLayout(tensor=2, data=4), 4)["run"].rollout
    assert list(engines.tensor_groups()) == [(0, 2), (1, 3), (4, 6), (5, 7)]


@pytest.mark.parametrize("rollout", [RolloutLayout(tensor=4, data=2), RolloutLayout(tensor=2, data=4, offset=8)])
def test_choose_rank_orders_reduce_to_natural(rollout: RolloutLayout) -> None:
    """Where nothing is gained, and where engines are on other ranks."""
    placed = placements(QWEN3_8B, ParallelLayout(tensor=4, data=2), rollout, 8)
    assert placed["run"].train.order is None
    assert placed["run"].rollout.order is None


@pytest.mark.parametrize(("expert", "order"), [(1, (("data", 2), ("tensor", 2))), (4, None)], ids=["cut", "spread"])
def test_choose_rank_orders_keep_experts_in_order(expert: int, order: RankOrder | None) -> None:
    """Experts spread over both engines take ranks 0 to 3 in that order, which the dense weights alone would not."""
    model, rollout = tiny_model("qwen3_moe", groups=4), RolloutLayout(tensor=2, data=2, expert=expert)
    assert placements(model, ParallelLayout(tensor=4), rollout, 8)["run"].rollout.order == order
