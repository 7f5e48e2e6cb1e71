"""Replicas of a node that share what comes over the network."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import prod

import pytest
import torch
import torch.distributed as dist

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.executor import ReshardExecutor
from megatron_rl.resharding.fan_out import FanOutPlan, plan_fan_out
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.verify import allocate_buffers, scatter_logical
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors
from tests.resharding.shapes import plan_sync, tiny_model
from tests.support.distributed import run_distributed

BUDGET = 1 << 16


def _plan(model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout, ranks_per_node: int) -> FanOutPlan:
    return plan_fan_out(
        logical_tensors(model),
        megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor)),
        train.ranks,
        vllm_rules_layout(model, rollout),
        rollout.ranks,
        itemsize=4,
        budget_bytes=BUDGET,
        ranks_per_node=ranks_per_node,
    )


def _node_ingress(plan: ReshardPlan, ranks_per_node: int) -> dict[int, int]:
    """Bytes that come into each node from others."""
    ingress: defaultdict[int, int] = defaultdict(int)
    for t in (t for transfers in plan.rounds for t in transfers):
        node = t.destination_rank // ranks_per_node
        if t.source_rank // ranks_per_node != node:
            ingress[node] += t.message.num_elements * plan.itemsize
    return dict(ingress)


@pytest.mark.parametrize(("tensor", "data"), [(1, 8), (2, 4), (4, 2)], ids=["tp1dp8", "tp2dp4", "tp4dp2"])
def test_plan_fan_out_reaches_node_bound(tensor: int, data: int) -> None:
    """Node 0 trains, the engines of nodes 1 and 2 take W * min(1, G / TP) in each, where unicast takes W * G / TP."""
    model = tiny_model("llama", groups=4, tied=False, vocab=256)
    train, rollout = ParallelLayout(tensor=4), RolloutLayout(tensor=tensor, data=data, offset=4)
    fanned, unicast = _plan(model, train, rollout, 4), plan_sync(model, train, rollout, budget_bytes=BUDGET)
    per_engine = sum(unicast.cost(rank).received_bytes for rank in range(4, 4 + tensor))
    assert _node_ingress(fanned.fetch, 4) == {1: per_engine, 2: per_engine}
    assert _node_ingress(unicast, 4) == {1: per_engine * 4 // tensor, 2: per_engine * 4 // tensor}
    assert _node_ingress(fanned.forward, 4) == {}
    for rank in unicast.ranks:
        assert fanned.cost(rank).received_bytes == unicast.cost(rank).received_bytes == unicast.cost(rank).bound_bytes
        assert fanned.cost(rank).staging_bytes <= BUDGET


def test_plan_fan_out_reduces_to_plan_reshard() -> None:
    """On one node nothing is forwarded."""
    model, train, rollout = tiny_model(), ParallelLayout(tensor=4), RolloutLayout(tensor=2, data=2)
    fanned = _plan(model, train, rollout, 8)
    assert fanned.forward.rounds == ()
    assert fanned.fetch.received_bytes == plan_sync(model, train, rollout, budget_bytes=BUDGET).received_bytes


def _fetch_then_forward() -> tuple[dict[str, int], int, int]:
    """Ranks 0, 1 train (TP2), ranks 2, 3 are two engines on another node.

    Returns wrong elements by parameter, the bytes this rank sent to the other node, and what the plans say of that.
    """
    rank = dist.get_rank()
    model = tiny_model("qwen2")
    train, rollout = ParallelLayout(tensor=2), RolloutLayout(data=2, offset=2)
    plan = _plan(model, train, rollout, 2)
    torch.manual_seed(0)
    tensors = {tensor.name: torch.randn(tensor.shape) for tensor in logical_tensors(model)}
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, 2))(rank)
    wanted = vllm_rules_layout(model, rollout)(rank)
    sources, engine = (allocate_buffers(fragments, torch.float32, 0.0) for fragments in (stored, wanted))
    scatter_logical(stored, tensors, sources)
    crossed = [0]
    send = dist.isend

    def counted(tensor: torch.Tensor, dst: int, *args: object) -> dist.Work | None:
        crossed[0] += tensor.numel() * tensor.element_size() * (dst // 2 != rank // 2)
        return send(tensor, dst, *args)  # type: ignore[arg-type]

    dist.isend = counted
    ReshardExecutor(plan.fetch, rank, sources, engine, dist.group.WORLD, BUDGET).run()
    ReshardExecutor(plan.forward, rank, engine, engine, dist.group.WORLD, BUDGET).run()
    expected = allocate_buffers(wanted, torch.float32, 0.0)
    scatter_logical(wanted, tensors, expected)
    wrong = {name: int((engine[name] != expected[name]).sum()) for name in engine}
    planned = [
        t for part in (plan.fetch, plan.forward) for transfers in part.rounds for t in transfers if t.source_rank == rank
    ]
    away = sum(t.message.num_elements * 4 for t in planned if t.destination_rank // 2 != rank // 2)
    return wrong, crossed[0], away


def test_fan_out_matches_reference() -> None:
    """After both plans, run by the ordinary executor over gloo, each engine holds every value of the checkpoint.

    The model crosses between the nodes once and not once per engine, as planned.
    """
    wrong, crossed, planned = zip(*run_distributed(4, _fetch_then_forward), strict=True)
    assert wrong[0] == wrong[1] == {}
    for rank in (2, 3):
        assert wrong[rank] and not any(wrong[rank].values())
    once = 4 * sum(torch.Size(tensor.shape).numel() for tensor in logical_tensors(tiny_model("qwen2")))
    assert crossed == planned
    assert sum(crossed) == once


def test_plan_fan_out_invariant_to_replica_count_of_shares() -> None:
    """Three replicas of a node fetch about a third each."""
    model = tiny_model("llama", groups=4, tied=False, vocab=256)
    train, rollout = ParallelLayout(), RolloutLayout(data=3, offset=3)
    fanned = _plan(model, replace(train, data=3), rollout, 3)
    fetched = [fanned.fetch.cost(rank).received_bytes for rank in (3, 4, 5)]
    assert sum(fetched) == fanned.cost(3).bound_bytes
    assert max(fetched) <= 1.1 * sum(fetched) / 3


def test_plan_fan_out_joins_ranks_that_hold_different_parts() -> None:
    """TP2 x PP2 x DP2 -> 8 engines on two nodes: the four of a node lack the same of the other stage, whatever they hold."""
    model = tiny_model("llama", groups=4, tied=False, vocab=256)
    train, rollout = ParallelLayout(tensor=2, pipeline=2, data=2), RolloutLayout(data=8)
    fanned = _plan(model, train, rollout, 4)
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, 2))
    away = [
        4 * sum(prod(t.shape) for t in logical_tensors(model) if t.name not in {f.tensor for f in stored(rank)})
        for rank in (0, 4)
    ]
    assert _node_ingress(fanned.fetch, 4) == dict(enumerate(away))
