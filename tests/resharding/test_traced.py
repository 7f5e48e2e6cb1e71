"""The rules against what vLLM's own loaders did, as stored: no torch, no vLLM."""

from __future__ import annotations

import pytest

from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.resharding.traced import FAMILIES, layouts_to_json, stored_layouts, tiny_shape, traced_places
from megatron_rl.resharding.vllm_rules import engine_stage_layers, vllm_rules_layout


@pytest.mark.parametrize("family", FAMILIES)
def test_vllm_rules_layout_matches_stored(family: str) -> None:
    """Box for box on every rank: TP 1, 2, 4, two pipeline stages, experts cut and spread."""
    model, stored = tiny_shape(family), stored_layouts(family)
    assert set(stored) == set(traced_places(model))
    for place, fragments in stored.items():
        rules = vllm_rules_layout(model, place.layout)(place.rank)
        assert len(fragments) == len(set(fragments))
        assert set(rules) == set(fragments)


@pytest.mark.parametrize("family", FAMILIES)
def test_layouts_to_json_roundtrips(family: str) -> None:
    stored = stored_layouts(family)
    text = layouts_to_json(stored, "0")
    assert layouts_to_json(dict(reversed(stored.items())), "0") == text
    assert text.count("\n") == len(stored) + 8


def test_engine_stage_layers_matches_hand_computed() -> None:
    """What does not divide goes to the stages before the last."""
    assert [len(layers) for layers in engine_stage_layers(10, 4)] == [2, 3, 3, 2]
    assert [len(layers) for layers in engine_stage_layers(61, 4)] == [15, 15, 16, 15]
    assert engine_stage_layers(4, 2) == (range(0, 2), range(2, 4))


def test_rollout_layout_pipeline_places_stages() -> None:
    """TP2 x PP2 x DP2: ranks 0, 1 are stage 0 of engine 0, ranks 6, 7 stage 1 of engine 1."""
    layout = RolloutLayout(tensor=2, pipeline=2, data=2)
    assert [layout.stage(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [layout.slot(rank) for rank in (0, 3, 6)] == [(0, 0), (0, 1), (1, 0)]
    assert list(layout.tensor_groups()) == [(0, 1), (2, 3), (4, 5), (6, 7)]
