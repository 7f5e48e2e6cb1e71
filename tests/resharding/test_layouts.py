"""Layouts by arithmetic: hand-sized cases and what they refuse."""

from __future__ import annotations

import pytest

from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.megatron_layout import megatron_layout, stage_layers
from megatron_rl.resharding.spec import Fragment
from megatron_rl.resharding.traced import tiny_shape
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from tests.resharding.shapes import tiny_model

Q, K, V = (f"model.layers.0.self_attn.{p}_proj.weight" for p in "qkv")
QKV = "decoder.layers.0.self_attention.linear_qkv.weight"


def _of(fragments: tuple[Fragment, ...], buffer: str) -> list[tuple[str, int, int, int]]:
    """Return (tensor, first row, last row, local row) of each fragment in a buffer."""
    return [(f.tensor, f.start[0], f.stop[0], f.offset // f.strides[0]) for f in fragments if f.buffer == buffer]


def test_megatron_layout_stacks_qkv_as_the_engine_does() -> None:
    """4 query heads of 4 rows in 2 groups: [Q; K; V] of the rank's own heads."""
    whole = _of(megatron_layout(tiny_model(), ParallelLayout(), 256)(0), QKV)
    assert whole == [(Q, 0, 16, 0), (K, 0, 8, 16), (V, 0, 8, 24)]
    half = _of(megatron_layout(tiny_model(), ParallelLayout(tensor=2), 256)(1), QKV)
    assert half == [(Q, 8, 16, 0), (K, 4, 8, 8), (V, 4, 8, 12)]


def test_megatron_layout_splits_group_over_ranks() -> None:
    """TP4 with 2 groups: rank 1 holds the second half of group 0, its key and value heads."""
    rows = _of(megatron_layout(tiny_model(), ParallelLayout(tensor=4), 256)(1), QKV)
    assert rows == [(K, 0, 4, 0), (V, 0, 4, 4)]


def test_vllm_layout_replicates_key_value_heads() -> None:
    rows = _of(vllm_rules_layout(tiny_model(), RolloutLayout(tensor=4))(1), "model.layers.0.self_attn.qkv_proj.weight")
    assert rows == [(Q, 4, 8, 0), (K, 0, 4, 4), (V, 0, 4, 8)]


def test_vocabulary_shards_are_clipped() -> None:
    fragments = megatron_layout(tiny_model(vocab=65), ParallelLayout(tensor=2), 128)
    assert _of(fragments(1), "embedding.word_embeddings.weight") == [("model.embed_tokens.weight", 64, 65, 0)]
    beyond = vllm_rules_layout(tiny_model(vocab=65), RolloutLayout(tensor=4))(3)
    assert _of(beyond, "model.embed_tokens.weight") == []


def test_tied_stages_both_hold_the_embedding() -> None:
    stored = megatron_layout(tiny_model(tied=True), ParallelLayout(pipeline=2), 256)
    assert _of(stored(0), "embedding.word_embeddings.weight") == [("model.embed_tokens.weight", 0, 251, 0)]
    assert _of(stored(1), "output_layer.weight") == [("model.embed_tokens.weight", 0, 251, 0)]
    assert _of(megatron_layout(tiny_model(tied=True), ParallelLayout(), 256)(0), "output_layer.weight") == []


def test_value_head_has_no_output_layer() -> None:
    for tied in (True, False):
        stored = megatron_layout(tiny_model(tied=tied), ParallelLayout(pipeline=2), 256, value_head=True)
        assert _of(stored(1), "output_layer.weight") == []


def test_stage_layers_matches_hand_computed() -> None:
    layout = ParallelLayout(pipeline=2, virtual_pipeline=2)
    assert stage_layers(8, layout, 0) == ((0, 1), (4, 5))
    assert stage_layers(8, layout, 1) == ((2, 3), (6, 7))


def test_layouts_are_empty_elsewhere() -> None:
    assert megatron_layout(tiny_model(), ParallelLayout(offset=2), 256)(0) == ()
    assert vllm_rules_layout(tiny_model(), RolloutLayout(offset=2))(3) == ()


def test_replicas_share_one_object() -> None:
    stored = megatron_layout(tiny_model(), ParallelLayout(tensor=2, data=2), 256)
    assert stored(1) is stored(3)


def test_permutation_places_shards() -> None:
    natural, permuted = (
        vllm_rules_layout(tiny_model(), RolloutLayout(tensor=2, data=2, permutation=p)) for p in (None, (0, 2, 1, 3))
    )
    assert permuted(2) == natural(1)
    assert permuted(1) == natural(2)


def test_megatron_layout_rejects_uneven_stages() -> None:
    with pytest.raises(ValueError, match=r"parallel\.pipeline .* = 3 does not divide model\.num_layers=4; .*\[1, 2, 4\]"):
        megatron_layout(tiny_model(), ParallelLayout(pipeline=3), 256)


def test_megatron_layout_rejects_heads() -> None:
    with pytest.raises(ValueError, match=r"parallel\.tensor=3 .*num_attention_heads=4.*legal here: \[1, 2, 4\]"):
        megatron_layout(tiny_model(), ParallelLayout(tensor=3), 258)


def test_vllm_layout_rejects_heads() -> None:
    with pytest.raises(ValueError, match=r"rollout\.tensor_parallel_size=3 .*legal here: \[1, 2, 4\]"):
        vllm_rules_layout(tiny_model(), RolloutLayout(tensor=3))


def test_megatron_layout_rejects_latent_widths() -> None:
    """Ten latent rows over four ranks: an error for the user, not an assertion."""
    with pytest.raises(ValueError, match=r"parallel\.tensor=4 .*latent attention.*legal here: \[1, 2\]"):
        megatron_layout(tiny_shape("deepseek_v3"), ParallelLayout(tensor=4), 256)
