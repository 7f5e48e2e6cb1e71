"""Collectives and weight transfers by hand, and the closed form against the planner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_rl.config.model import MoeConfig
from megatron_rl.estimator.catalogue import Fabric, find_gpu
from megatron_rl.estimator.coefficients import Coefficient, Coefficients
from megatron_rl.estimator.communication import (
    all_gather_s,
    all_reduce_s,
    data_parallel_s,
    expert_parallel_s,
    link,
    pipeline_p2p_s,
    tensor_parallel_s,
)
from megatron_rl.estimator.step_time import sync_cost
from megatron_rl.estimator.sync_bytes import SyncBytes, received_bound_bytes, sync_bytes
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from tests.estimator.shapes import small_model

FABRIC = Fabric(name="test", bytes_per_s=100.0, latency_s=0.5)
H200 = find_gpu("H200")


def test_all_gather_s_matches_hand_computed() -> None:
    # Three messages of 400 / 4 bytes at 100 * 0.5 bytes/s and half a second each.
    assert all_gather_s(400, 4, FABRIC, 0.5) == 3 * (100 / 50 + 0.5)
    assert all_reduce_s(400, 4, FABRIC, 0.5) == 2 * all_gather_s(400, 4, FABRIC, 0.5)


def test_collectives_of_one_rank_are_free() -> None:
    assert all_gather_s(400, 1, FABRIC, 0.5) == all_reduce_s(400, 1, FABRIC, 0.5) == 0


def test_link_leaves_the_node_beyond_its_cards() -> None:
    assert (link(H200, 8).name, link(H200, 9).name) == ("nvlink4", "ib_400g")


def test_tensor_parallel_s_matches_hand_computed() -> None:
    once = all_reduce_s(100 * 8 * 2, 2, H200.intra_node, 1.0)
    layout = ParallelLayout(tensor=2)
    assert tensor_parallel_s(small_model(), layout, 100, H200, 1.0, backward=False) == 2 * 2 * once
    assert tensor_parallel_s(small_model(), layout, 100, H200, 1.0, backward=True) == 2 * 2 * 2 * once


def test_data_parallel_s_matches_hand_computed() -> None:
    layout = ParallelLayout(data=4)
    fabric = H200.intra_node
    assert data_parallel_s(1000, layout, H200, 1.0) == all_gather_s(4000, 4, fabric, 1.0) + all_gather_s(2000, 4, fabric, 1.0)


def test_pipeline_p2p_s_matches_hand_computed() -> None:
    assert pipeline_p2p_s(small_model(), ParallelLayout(), 100, H200, 1.0) == 0
    fabric = H200.intra_node
    expected = 100 * 8 * 2 / fabric.bytes_per_s + fabric.latency_s
    assert pipeline_p2p_s(small_model(), ParallelLayout(pipeline=2), 100, H200, 1.0) == expected


def test_expert_parallel_s_matches_hand_computed() -> None:
    model = small_model(
        architecture="qwen3_moe",
        moe=MoeConfig(num_experts=4, experts_per_token=2, expert_intermediate_size=8, num_dense_layers=1),
    )
    layout = ParallelLayout(data=4, expert=4, expert_tensor=1)
    fabric = H200.intra_node
    # One MoE layer, there and back; each token goes to two ranks, a quarter of them its own.
    once = 100 * 8 * 2 * 2 * 0.75 / fabric.bytes_per_s + fabric.latency_s
    assert expert_parallel_s(model, layout, 100, H200, 1.0, backward=False) == 2 * once


NESTED = [
    (ParallelLayout(tensor=2), 2),
    (ParallelLayout(data=4), 2),
    (ParallelLayout(tensor=2, data=2), 1),
    (ParallelLayout(tensor=4), 1),
    (ParallelLayout(tensor=2, pipeline=2), 2),
    (ParallelLayout(pipeline=2, data=2), 1),
    (ParallelLayout(tensor=2, data=2), 4),
    (ParallelLayout(tensor=2, pipeline=2), 4),
    (ParallelLayout(tensor=4), 2),
    (ParallelLayout(tensor=4, data=2), 2),
    (ParallelLayout(tensor=4, pipeline=2), 2),
]
"""Layouts whose shards nest in a run's rank orders, so that the closed form holds on every rank."""


def ids(pairs: list[tuple[ParallelLayout, int]]) -> list[str]:
    return [f"tp{train.tensor}pp{train.pipeline}dp{train.data}-to-tp{rollout}" for train, rollout in pairs]


def planned_and_closed(train: ParallelLayout, rollout: int) -> tuple[int, int]:
    model = small_model(num_layers=4, tie_word_embeddings=False, num_key_value_heads=4)
    engines = RolloutLayout(tensor=rollout, data=train.world_size // rollout)
    size = sync_bytes(model, train, engines, itemsize=2, budget_bytes=2**20, ranks_per_node=8, aliased=False, plan=True)
    assert size.planned
    return size.bound_bytes, received_bound_bytes(model, train, rollout, 2)


@pytest.mark.parametrize("train,rollout", NESTED, ids=ids(NESTED))
def test_received_bound_bytes_matches_reference(train: ParallelLayout, rollout: int) -> None:
    """The planner's bound; a pipeline's end stages differ by half of the final norm."""
    planned, closed = planned_and_closed(train, rollout)
    assert planned - closed == (8 if train.pipeline > 1 else 0)


def test_sync_bytes_of_equal_layouts_is_zero() -> None:
    size = sync_bytes(
        small_model(),
        ParallelLayout(tensor=2, data=2),
        RolloutLayout(tensor=2, data=2),
        itemsize=2,
        budget_bytes=2**20,
        ranks_per_node=8,
        aliased=False,
        plan=True,
    )
    assert (size.received_bytes, size.bound_bytes) == (0, 0) and size.copied_bytes > 0


@pytest.mark.parametrize("plan", [True, False], ids=["planned", "closed"])
def test_sync_bytes_of_shared_weights_moves_nothing(plan: bool) -> None:
    layouts = ParallelLayout(tensor=2, data=2), RolloutLayout(tensor=2, data=2)
    model = small_model(vocab_size=256)  # no padding on either side
    size = sync_bytes(model, *layouts, itemsize=2, budget_bytes=2**20, ranks_per_node=8, aliased=True, plan=plan)
    assert (size.received_bytes, size.copied_bytes) == (0, 0)


def test_sync_cost_matches_hand_computed() -> None:
    size = SyncBytes(received_bytes=1000, copied_bytes=500, bound_bytes=1000, planned=True)
    half, push = Coefficient(value=0.5), Coefficient(value=0.25)
    known = replace(Coefficients(), link_frac=half, memory_frac=half, push_s=push)
    expected = 0.25 + 1000 / (450e9 * 0.5) + (2 * 500 + 4 * 1000) / (4.8e12 * 0.5)
    assert sync_cost(size, H200, 2, known).seconds(H200, known) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 10**9), st.integers(1, 64))
def test_all_gather_s_grows_with_bytes_and_ranks(size: int, ranks: int) -> None:
    base = all_gather_s(size, ranks, FABRIC, 1.0)
    assert all_gather_s(2 * size, ranks, FABRIC, 1.0) >= base
    assert all_gather_s(size, ranks + 1, FABRIC, 1.0) >= base
