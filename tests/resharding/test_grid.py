"""Bytes against the closed-form bound over the whole grid."""

from __future__ import annotations

import math
from itertools import product

import pytest

from megatron_rl.config.model import ModelConfig, MoeConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.fabric import H200_NODE
from megatron_rl.resharding.grid import grid_layouts
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.permutation import Overlaps, choose_permutation, common_elements
from megatron_rl.resharding.placement import placements
from megatron_rl.resharding.report import report_reshard
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors

DENSE = ModelConfig(
    name="divides_by_8",
    architecture="qwen3",
    num_layers=8,
    hidden_size=16,
    intermediate_size=32,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=4,
    vocab_size=512,
    qk_norm=True,
)
EXPERTS = DENSE.model_copy(
    update={
        "architecture": "qwen3_moe",
        "moe": MoeConfig(num_experts=8, experts_per_token=2, expert_intermediate_size=16),
    }
)


def _bound_elements(model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout) -> float:
    """Mean per rank: need minus the largest nested overlap, over the parts cut by TP and the replicated ones."""
    whole = sum(math.prod(tensor.shape) for tensor in logical_tensors(model))
    norms = sum(math.prod(t.shape) for t in logical_tensors(model) if t.name.endswith("norm.weight"))
    nested = train.pipeline * max(train.tensor, rollout.tensor)
    return (whole - norms) * (1 / rollout.tensor - 1 / nested) + norms * (1 - 1 / train.pipeline)


PAIRS = [(model, *pair) for model in (DENSE, EXPERTS) for pair in grid_layouts(model)]


def test_grid_covers_fifty_pairs() -> None:
    assert len(PAIRS) >= 50


@pytest.mark.parametrize("train", sorted({str(train) for model, train, _ in PAIRS if model is DENSE}))
def test_dense_grid_reaches_the_bound(train: str) -> None:
    for model, layout, rollout in PAIRS:
        if model is DENSE and str(layout) == train:
            report = report_reshard(model, layout, rollout, H200_NODE, placement="best")
            received = sum(rank.received_bytes for rank in report.ranks)
            assert received == pytest.approx(8 * 2 * _bound_elements(model, layout, rollout), abs=0.5)
            assert report.bound_ratio == 1.0


def _most_kept(model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout) -> int:
    """Elements that stay home under the best of all 8! placements, by dynamic programming over sets of ranks."""
    holds, needs = megatron_layout(model, train, 512), vllm_rules_layout(model, rollout)
    overlap = {}
    for slot, rank in product(range(8), repeat=2):
        key = (id(needs(slot)), id(holds(rank)))
        overlap[key] = overlap[key] if key in overlap else common_elements(holds(rank), needs(slot))
    best = {0: 0}
    for slot in range(8):
        gains = [overlap[id(needs(slot)), id(holds(rank))] for rank in range(8)]
        extended: dict[int, int] = {}
        for used, kept in best.items():
            for rank in (rank for rank in range(8) if not used >> rank & 1):
                placed = used | 1 << rank
                extended[placed] = max(extended.get(placed, 0), kept + gains[rank])
        best = extended
    return best[255]


@pytest.mark.parametrize("train", sorted({str(train) for model, train, _ in PAIRS if model is EXPERTS}))
def test_expert_grid_reaches_the_best_placement(train: str) -> None:
    """Dense and expert parts may want different placements, so the bound is the best of all, or a run's where that is less."""
    for model, layout, rollout in PAIRS:
        if model is EXPERTS and str(layout) == train:
            choices = placements(model, layout, rollout, 8)
            overlaps = Overlaps(choices["natural"].source, choices["natural"].destination)
            slots = dict(zip(choose_permutation(overlaps, range(8), 8), range(8), strict=True))
            needed = sum(f.num_elements for rank in range(8) for f in vllm_rules_layout(model, rollout)(rank))
            fewest = needed - _most_kept(model, layout, rollout)
            assert sum(overlaps.missing(slots).values()) == fewest
            assert choices["best"].total_missing == min(fewest, choices["run"].total_missing)
            report = report_reshard(model, layout, rollout, H200_NODE, placement="best")
            assert report.received_bytes == report.bound_bytes == 2 * choices["best"].total_missing
