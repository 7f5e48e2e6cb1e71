"""Properties of plans over a grid of layouts: no process group, no engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.spec import Fragment, LogicalTensor, RankFragments
from megatron_rl.resharding.traced import tiny_shape
from megatron_rl.resharding.verify import allocate_buffers, count_writes, fragment_view, scatter_logical
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors
from tests.resharding.shapes import plan_sync, tiny_model

GOLDEN = Path(__file__).parent / "golden" / "tp2pp2_to_tp4.json"
BUDGET = 1 << 14


@st.composite
def _layout_pairs(draw: st.DrawFn) -> tuple[ModelConfig, ParallelLayout, RolloutLayout]:
    groups = draw(st.sampled_from([1, 2, 4]))
    family = draw(st.sampled_from(["llama", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3"]))
    vocab = draw(st.sampled_from([251, 256, 65]))
    if family == "deepseek_v3":
        model = tiny_shape(family).model_copy(update={"num_layers": 4, "vocab_size": vocab})
    else:
        model = tiny_model(family, groups=groups, vocab=vocab, tied=draw(st.booleans()))
    train = ParallelLayout(
        tensor=draw(st.sampled_from([1, 2] if family == "deepseek_v3" else [1, 2, 4])),
        pipeline=draw(st.sampled_from([1, 2])),
        virtual_pipeline=draw(st.sampled_from([1, 2])),
        data=draw(st.sampled_from([1, 2])),
        context=draw(st.sampled_from([1, 2])),
    )
    if train.pipeline == 1:
        train = replace(train, virtual_pipeline=1)
    tensor = draw(st.sampled_from([1, 2, 4]))
    if model.moe is not None:
        block = train.tensor * train.context * train.data
        expert, expert_tensor = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (6, 1)]))
        if block % (expert * expert_tensor) == 0:
            train = replace(train, expert=expert, expert_tensor=expert_tensor)
    pipeline = draw(st.sampled_from([1, 2, 3]))
    colocated = draw(st.booleans()) and train.world_size % (tensor * pipeline) == 0
    data = train.world_size // (tensor * pipeline) if colocated else draw(st.sampled_from([1, 2, 3]))
    spread = draw(st.sampled_from([1, tensor, tensor * data]))
    offset = 0 if colocated else train.world_size
    return model, train, RolloutLayout(tensor=tensor, pipeline=pipeline, data=data, expert=spread, offset=offset)


def _element_ids(model: ModelConfig) -> dict[str, torch.Tensor]:
    ids, start = {}, 0
    for tensor in logical_tensors(model):
        count = torch.Size(tensor.shape).numel()
        ids[tensor.name] = torch.arange(start, start + count).view(tensor.shape)
        start += count
    return ids


def _held_ids(fragments: RankFragments, ids: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    buffers = allocate_buffers(fragments, torch.int64, -1)
    scatter_logical(fragments, ids, buffers)
    return buffers


def _simulate(plan: ReshardPlan, sources: dict[int, dict[str, torch.Tensor]], destinations: dict[int, dict[str, torch.Tensor]]):
    moves = [(rank, rank, pieces) for rank, pieces in plan.copies.items()]
    moves += [(t.source_rank, t.destination_rank, t.message.pieces) for transfers in plan.rounds for t in transfers]
    for giver, taker, pieces in moves:
        for p in pieces:
            values = sources[giver][p.source].as_strided(p.shape, p.source_strides, p.source_offset)
            destinations[taker][p.destination].as_strided(p.shape, p.destination_strides, p.destination_offset).copy_(values)


@settings(max_examples=60, deadline=None)
@given(_layout_pairs())
def test_plan_reshard_matches_reference(case: tuple[ModelConfig, ParallelLayout, RolloutLayout]) -> None:
    """Every wanted element arrives, is written once, and no rank receives what it holds or needs not."""
    model, train, rollout = case
    plan = plan_sync(model, train, rollout, budget_bytes=BUDGET)
    ids = _element_ids(model)
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))
    wanted = vllm_rules_layout(model, rollout)
    sources = {rank: _held_ids(stored(rank), ids) for rank in plan.ranks}
    destinations = {rank: allocate_buffers(wanted(rank), torch.int64, -1) for rank in plan.ranks}
    _simulate(plan, sources, destinations)
    for rank, cost in plan.costs.items():
        expected = _held_ids(wanted(rank), ids)
        for name, count in count_writes(plan, rank, destinations[rank]).items():
            assert torch.equal(destinations[rank][name], expected[name])
            assert torch.equal(count, (expected[name] >= 0).to(count))
        held = set().union(*(buffer.tolist() for buffer in sources[rank].values()))
        needed = [i for buffer in expected.values() for i in buffer.tolist() if i >= 0]
        assert cost.bound_bytes == cost.received_bytes == 4 * sum(i not in held for i in needed)
        assert cost.copied_bytes == 4 * len(needed) - cost.received_bytes
        assert cost.staging_bytes <= BUDGET


@settings(max_examples=20, deadline=None)
@given(_layout_pairs())
def test_plan_reshard_roundtrips_hash(case: tuple[ModelConfig, ParallelLayout, RolloutLayout]) -> None:
    assert plan_sync(*case).hash == plan_sync(*case).hash


def test_hash_differs_between_layouts() -> None:
    model, train = tiny_model(), ParallelLayout(tensor=2)
    assert plan_sync(model, train, RolloutLayout(tensor=2)).hash != plan_sync(model, train, RolloutLayout(data=2)).hash


QWEN3_8B = ModelConfig(
    name="qwen3_8b",
    architecture="qwen3",
    num_layers=36,
    hidden_size=4096,
    intermediate_size=12288,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
    qk_norm=True,
)
TABLE = {
    "tp2dp4_to_tp8": (ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=8), 1.02, 2.05),
    "tp2dp4_to_tp4dp2": (ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=4, data=2), 2.05, 4.10),
    "tp8_to_tp2dp4": (ParallelLayout(tensor=8), RolloutLayout(tensor=2, data=4), 7.17, 8.19),
    "tp4pp2_to_tp8": (ParallelLayout(tensor=4, pipeline=2), RolloutLayout(tensor=8), 1.79, 2.05),
    "tp2pp4_to_tp1dp8": (ParallelLayout(tensor=2, pipeline=4), RolloutLayout(data=8), 14.33, 14.64),
    "tp8_to_tp8": (ParallelLayout(tensor=8), RolloutLayout(tensor=8), 0.0, 0.0),
}


@pytest.mark.parametrize("case", TABLE)
def test_received_bytes_matches_hand_computed(case: str) -> None:
    """Mean and worst rank in GB, bf16, natural rank order: the figures of docs/resharding."""
    train, rollout, mean_gb, max_gb = TABLE[case]
    costs = plan_sync(QWEN3_8B, train, rollout, itemsize=2, budget_bytes=256 << 20).costs.values()
    received = [cost.received_bytes / 1e9 for cost in costs]
    assert sum(received) / 8 == pytest.approx(mean_gb, abs=0.006)
    assert max(received) == pytest.approx(max_gb, abs=0.006)


def test_equal_layouts_need_one_copy_per_parameter() -> None:
    """Adjacent pieces are merged: with one KV group per rank even QKV is a single run."""
    model = tiny_model("qwen2", tied=False)
    plan = plan_sync(model, ParallelLayout(tensor=2), RolloutLayout(tensor=2))
    parameters = {f.buffer for f in vllm_rules_layout(model, RolloutLayout(tensor=2))(0)}
    assert plan.rounds == ()
    assert len(plan.copies[0]) == len(parameters)
    assert plan.bound_ratio == 1.0


def test_senders_share_the_load() -> None:
    """Four replicas serve one engine of two ranks: none sends more than a few elements over its share."""
    plan = plan_sync(tiny_model(), ParallelLayout(tensor=2, data=4), RolloutLayout(tensor=2, offset=8))
    sent = [plan.costs[rank].sent_bytes for rank in range(8)]
    assert sum(sent) == plan.received_bytes
    assert max(sent) <= 1.1 * sum(sent) / 8


def test_plan_rejects_tensor_without_source() -> None:
    model, rollout = tiny_model(), RolloutLayout(tensor=2)
    stored = megatron_layout(model, ParallelLayout(tensor=2), 256)
    victim = "model.layers.2.mlp.down_proj.weight"
    parts = {rank: tuple(f for f in stored(rank) if f.tensor != victim) for rank in range(2)}
    with pytest.raises(ValueError, match=f"no source rank stores .* of '{victim}'"):
        plan_reshard(
            logical_tensors(model),
            parts.__getitem__,
            range(2),
            vllm_rules_layout(model, rollout),
            range(2),
            itemsize=4,
            budget_bytes=BUDGET,
        )


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((LogicalTensor("extra.weight", (3,)),), r"no destination rank takes \(0,\)..\(3,\) of 'extra.weight'"),
        (None, r"destination layout stores 'model.norm.weight' in 'model.norm.weight', which the checkpoint lacks"),
    ],
    ids=["tensor_without_destination", "unknown_tensor"],
)
def test_plan_rejects_incomplete_layouts(tensors: tuple[LogicalTensor, ...] | None, message: str) -> None:
    model, rollout = tiny_model(), RolloutLayout()
    known = logical_tensors(model)
    listed = (*known, *tensors) if tensors else tuple(t for t in known if t.name != "model.norm.weight")
    stored = megatron_layout(model, ParallelLayout(), 256)
    with pytest.raises(ValueError, match=message):
        plan_reshard(
            listed,
            lambda rank: tuple(f for f in stored(rank) if tensors or f.tensor != "model.norm.weight"),
            [0],
            vllm_rules_layout(model, rollout),
            [0],
            itemsize=4,
            budget_bytes=BUDGET,
        )


def test_plan_rejects_tiny_budget() -> None:
    with pytest.raises(ValueError, match=r"weight_sync\.budget_mib"):
        plan_sync(tiny_model(), ParallelLayout(tensor=2), RolloutLayout(data=2), budget_bytes=8)


def test_plan_matches_golden(update_golden: bool) -> None:
    model = tiny_model("llama", layers=2, tied=False)
    text = plan_sync(model, ParallelLayout(tensor=2, pipeline=2), RolloutLayout(tensor=4)).to_json() + "\n"
    if update_golden:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "the plan changed; if that is meant, renew it with pytest --update-golden"


def test_fragment_view_matches_hand_computed() -> None:
    """Columns 4..7 of rows 1..2 stored as a [2, 4] block behind 8 other elements."""
    fragment = Fragment("w", (1, 4), (3, 8), "buffer", 8, (4, 1))
    assert fragment_view(fragment, torch.arange(20)).tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
