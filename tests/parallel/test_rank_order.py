"""Rank orders as mixed-radix numbers, and layouts that use one."""

from __future__ import annotations

import pytest

from megatron_rl.parallel.layout import AXES, ParallelLayout, RolloutLayout
from megatron_rl.parallel.rank_order import RankOrder, joined, node_orders, rank_digits, rank_index

SPLIT = (("tensor", 2), ("data", 3), ("tensor", 2), ("pipeline", 2))


def test_rank_digits_matches_hand_computed() -> None:
    """Rank 9 of T2 D3 T2 P2: digits 1, 1, 1, 0, so tensor 1 + 2 * 1."""
    assert rank_digits(SPLIT, 9) == {"tensor": 3, "data": 1, "pipeline": 0}


def test_rank_index_roundtrips() -> None:
    assert [rank_index(SPLIT, rank_digits(SPLIT, index)) for index in range(24)] == list(range(24))


def test_joined_fuses_neighbours() -> None:
    assert joined((("tensor", 2), ("context", 1), ("tensor", 2), ("data", 3))) == (("tensor", 4), ("data", 3))


NODE_ORDERS = {
    "one_node": ((("tensor", 2), ("data", 4)), 8, [(("data", 4), ("tensor", 2)), (("data", 2), ("tensor", 2), ("data", 2))]),
    "node_cuts_an_axis": ((("tensor", 2), ("data", 4)), 4, [(("data", 2), ("tensor", 2), ("data", 2))]),
    "node_of_one_axis": ((("tensor", 8), ("data", 2)), 8, []),
    "part_of_a_node": ((("tensor", 2), ("data", 3)), 8, [(("data", 3), ("tensor", 2))]),
    "blocks_across_nodes": ((("tensor", 2), ("data", 3)), 4, []),
}


@pytest.mark.parametrize("case", NODE_ORDERS)
def test_node_orders_matches_hand_computed(case: str) -> None:
    natural, ranks_per_node, others = NODE_ORDERS[case]
    assert node_orders(natural, ranks_per_node) == [natural, *others]


@pytest.mark.parametrize("degrees", [(4, 1, 4, 2), (2, 2, 4, 2), (2, 1, 12, 1)], ids=["tp4", "tp2cp2", "dp12"])
def test_node_orders_keep_every_place_on_its_node(degrees: tuple[int, ...]) -> None:
    natural: RankOrder = tuple(zip(AXES, degrees, strict=True))
    placed = [{rank_index(order, rank_digits(natural, rank)) // 8 for rank in range(8)} for order in node_orders(natural, 8)]
    assert len(placed) > 1
    assert placed == [{0}] * len(placed)


def test_layout_matches_hand_computed() -> None:
    """DP2 fastest, then TP2: ranks 0, 2 are the tensor group of data rank 0; pairs of a stage stay together."""
    layout = ParallelLayout(tensor=2, data=2, pipeline=2, offset=8, order=(("data", 2), ("tensor", 2), ("pipeline", 2)))
    assert list(layout.groups("tensor")) == [(8, 10), (9, 11), (12, 14), (13, 15)]
    assert list(layout.groups("data")) == [(8, 9), (10, 11), (12, 13), (14, 15)]
    assert list(layout.groups("tensor", "pipeline")) == [(8, 10, 12, 14), (9, 11, 13, 15)]
    assert (layout.coordinates(13).tensor, layout.coordinates(13).data, layout.coordinates(13).pipeline) == (0, 1, 1)
    assert layout.rank(data=1, pipeline=1) == 13


@pytest.mark.parametrize("order", node_orders((("tensor", 4), ("context", 1), ("data", 2), ("pipeline", 2)), 16))
def test_groups_ascend_in_coordinate_order(order: RankOrder) -> None:
    """A group numbers its members by rank, and Megatron-Core takes the number for the coordinate."""
    layout = ParallelLayout(tensor=4, data=2, pipeline=2, order=order)
    for axis in ("tensor", "data", "pipeline"):
        for ranks in layout.groups(axis):
            assert list(ranks) == sorted(ranks)
            assert [getattr(layout.coordinates(rank), axis) for rank in ranks] == list(range(layout.size(axis)))


def test_expert_groups_follow_the_ranks_of_a_stage() -> None:
    """Stages alternate, so that stage 0 has the even ranks; experts are laid over them in ascending order."""
    layout = ParallelLayout(tensor=2, data=2, pipeline=2, expert=2, order=(("pipeline", 2), ("tensor", 2), ("data", 2)))
    assert layout.stage_ranks(0) == (0, 2, 4, 6)
    assert [layout.place_in_stage(rank) for rank in layout.stage_ranks(1)] == [0, 1, 2, 3]
    assert list(layout.expert_groups("expert")) == [(0, 4), (2, 6), (1, 5), (3, 7)]


def test_engine_layout_matches_hand_computed() -> None:
    """Engines fastest: shards of one are two ranks apart; rank 9 is shard 0 of engine 1."""
    layout = RolloutLayout(tensor=2, data=2, offset=8, order=(("data", 2), ("tensor", 2)))
    assert layout.ranks == (8, 10, 9, 11)
    assert list(layout.tensor_groups()) == [(8, 10), (9, 11)]
    assert [layout.slot(rank) for rank in (8, 9, 10, 11)] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_engine_expert_groups_follow_engines_of_a_stage() -> None:
    """TP2 x PP2 x DP2, experts over the four shards of a stage: ranks 0, 1 and 4, 5 are stage 0."""
    assert list(RolloutLayout(tensor=2, pipeline=2, data=2, expert=4).expert_groups()) == [(0, 1, 4, 5), (2, 3, 6, 7)]


@pytest.mark.parametrize("layout", [ParallelLayout, RolloutLayout])
def test_layout_rejects_order_of_other_degrees(layout: type[ParallelLayout] | type[RolloutLayout]) -> None:
    with pytest.raises(ValueError, match="must multiply to"):
        layout(tensor=2, data=2, order=(("tensor", 4),))
