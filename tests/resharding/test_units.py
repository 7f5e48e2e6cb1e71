"""Groups of tensors that are planned together, and which of them are alike."""

from __future__ import annotations

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.pieces import Piece
from megatron_rl.resharding.units import Kind, find_kinds
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors
from tests.resharding.shapes import tiny_model


def _kinds(model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout) -> list[Kind]:
    source = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))
    destination = vllm_rules_layout(model, rollout)
    shapes = {tensor.name: tensor.shape for tensor in logical_tensors(model)}
    sources = list(dict.fromkeys(source(rank) for rank in train.ranks))
    return find_kinds(shapes, sources, [destination(rank) for rank in range(rollout.tensor)])


def _tensors(kind: Kind) -> set[str]:
    return {f.tensor.removeprefix("model.layers.0.") for fragments in kind.fragments.values() for f in fragments}


def test_find_kinds_matches_hand_computed() -> None:
    """Tensors of one parameter are one unit; layers are alike, and so are the two norms of each."""
    kinds = _kinds(tiny_model("llama", tied=False), ParallelLayout(), RolloutLayout(tensor=2))
    assert {(frozenset(_tensors(kind)), len(kind.units)) for kind in kinds} == {
        (frozenset({f"self_attn.{p}_proj.weight" for p in "qkv"}), 4),
        (frozenset({"self_attn.o_proj.weight"}), 4),
        (frozenset({"mlp.gate_proj.weight", "mlp.up_proj.weight"}), 4),
        (frozenset({"mlp.down_proj.weight"}), 4),
        (frozenset({"input_layernorm.weight"}), 2 * 4 + 1),
        (frozenset({"model.embed_tokens.weight"}), 2),
    }


def test_find_kinds_keeps_pipeline_stages_apart() -> None:
    """Layers of two stages lie on other ranks, so that each stage has kinds of its own."""
    model = tiny_model("llama")
    one, two = (_kinds(model, ParallelLayout(pipeline=stages), RolloutLayout(tensor=2)) for stages in (1, 2))
    assert sum(len(kind.units) for kind in one) == sum(len(kind.units) for kind in two)
    assert len(two) > len(one)


def test_find_kinds_is_as_many_for_any_depth() -> None:
    for family in ("qwen2", "qwen3_moe"):
        shallow, deep = (
            _kinds(tiny_model(family, layers=layers), ParallelLayout(tensor=2), RolloutLayout(tensor=2)) for layers in (3, 8)
        )
        assert len(shallow) == len(deep)


def test_named_renames_parameters() -> None:
    kinds = _kinds(tiny_model("llama"), ParallelLayout(), RolloutLayout())
    (qkv,) = (kind for kind in kinds if "self_attn.q_proj.weight" in _tensors(kind))
    piece = Piece((8,), qkv.units[0].sources[0], 3, (1,), qkv.units[0].destinations[0], 5, (1,))
    assert qkv.named((piece,), qkv.units[0]) == (piece,)
    (renamed,) = qkv.named((piece,), qkv.units[2])
    assert renamed.source == "decoder.layers.2.self_attention.linear_qkv.weight"
    assert renamed.destination == "model.layers.2.self_attn.qkv_proj.weight"
    assert (renamed.source_offset, renamed.destination_offset) == (3, 5)
