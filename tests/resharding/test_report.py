"""Reports against closed forms."""

from __future__ import annotations

import json

import pytest

from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.aliasing import alias_candidates
from megatron_rl.resharding.fabric import H200_NODE, predict_seconds
from megatron_rl.resharding.report import report_reshard
from tests.resharding.shapes import plan_sync, tiny_model
from tests.resharding.test_planner import QWEN3_8B


def test_report_reshard_matches_hand_computed() -> None:
    """TP4 x PP2 x DP2 -> TP8 x DP2: per rank W_d (1/TP_r - 1/(PP_t TP_r)) plus the norms of the other stage."""
    report = report_reshard(QWEN3_8B, ParallelLayout(tensor=4, pipeline=2, data=2), RolloutLayout(tensor=8, data=2), H200_NODE)
    norms = 2 * (36 * (2 * 4096 + 2 * 128) + 4096)
    sharded = report.broadcast_bytes - norms
    expected = sharded * (1 / 8 - 1 / 16) + norms / 2
    mean = sum(rank.received_bytes for rank in report.ranks) / 16
    assert mean == pytest.approx(expected, rel=1e-6)
    assert report.bound_ratio == 1.0


def test_report_reshard_charges_natural_order() -> None:
    train, rollout = ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=8)
    natural = report_reshard(QWEN3_8B, train, rollout, H200_NODE, placement="natural")
    assert natural.bound_ratio == float("inf")
    assert natural.to_json_object()["bound_ratio"] is None
    assert report_reshard(QWEN3_8B, train, rollout, H200_NODE).max_received_bytes == 0


def test_report_reshard_keeps_apart_ranks() -> None:
    report = report_reshard(tiny_model(), ParallelLayout(tensor=2), RolloutLayout(tensor=2, offset=2), H200_NODE)
    assert [rank.received_bytes > 0 for rank in report.ranks] == [False, False, True, True]
    assert report.bound_ratio == 1.0


def test_report_reshard_shows_every_order() -> None:
    """TP2 x DP2 with EP2 x ETP2 -> TP4: experts follow the ranks, so that no order of a run is the best placement."""
    layouts = ParallelLayout(tensor=2, data=2, expert=2, expert_tensor=2), RolloutLayout(tensor=4)
    run, best = (report_reshard(tiny_model("qwen3_moe"), *layouts, H200_NODE, placement=name) for name in ("run", "best"))
    assert run.order_bytes == best.order_bytes
    assert run.order_bytes["natural"] > run.order_bytes["run"] == run.received_bytes
    assert best.received_bytes == best.bound_bytes == run.bound_bytes == run.order_bytes["best"] < run.received_bytes


def test_to_json_object_roundtrips() -> None:
    report = report_reshard(tiny_model(), ParallelLayout(tensor=2), RolloutLayout(data=2), H200_NODE)
    content = json.loads(json.dumps(report.to_json_object()))
    assert [rank["rank"] for rank in content["ranks"]] == [0, 1]
    assert content["max_received_bytes"] == max(rank.received_bytes for rank in report.ranks)


def test_alias_candidates_matches_hand_computed() -> None:
    """Equal TP: everything; half of it: what is not cut, and what is cut in rows of one tensor."""
    same = plan_sync(tiny_model("llama", groups=4), ParallelLayout(tensor=2), RolloutLayout(tensor=2))
    assert alias_candidates(same)[0] == same.copies[0]
    finer = plan_sync(tiny_model("llama"), ParallelLayout(data=2), RolloutLayout(tensor=2))
    names = {piece.destination.rsplit(".", 2)[-2] for piece in alias_candidates(finer)[1]}
    assert names == {"input_layernorm", "post_attention_layernorm", "norm", "embed_tokens"}


def test_predict_seconds_matches_hand_computed() -> None:
    """TP2 -> TP1 x DP2 in one round: copies, one latency, and the larger direction over NVLink."""
    plan = plan_sync(tiny_model(), ParallelLayout(tensor=2), RolloutLayout(data=2))
    copied = max(cost.copied_bytes for cost in plan.costs.values())
    moved = max(max(cost.received_bytes, cost.sent_bytes) for cost in plan.costs.values())
    assert len(plan.rounds) == 1
    assert predict_seconds(plan, H200_NODE) == pytest.approx(copied / 2.15e12 + 30e-6 + moved / 350e9)
