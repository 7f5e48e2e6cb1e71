"""Weights that arrive in block-scaled FP8: plans by hand, and transfers between gloo ranks against vLLM's arithmetic."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from kernels.fp8_blocks.reference import block_amax_reference, scales_from_amax
from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.block_quantiser import BlockQuantiser
from megatron_rl.resharding.executor import ReshardExecutor
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.quantisation import SCALE_SUFFIX, QuantisedPlans, of_scales, only, plan_quantised, split_quantised
from megatron_rl.resharding.verify import allocate_matrices, scatter_logical
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors
from tests.resharding.shapes import tiny_model
from tests.support.distributed import run_distributed

BUDGET = 1 << 20
PAIRS = {
    "tp1_to_tp1": (ParallelLayout(), RolloutLayout()),
    "tp2_to_tp1dp2": (ParallelLayout(tensor=2), RolloutLayout(data=2)),
    "pp2_to_tp2": (ParallelLayout(pipeline=2), RolloutLayout(tensor=2)),
}


def blocky_model(**changes: object) -> ModelConfig:
    """Two ranks' shards are whole blocks."""
    shape = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128}
    return tiny_model().model_copy(update={**shape, "intermediate_size": 512, "num_layers": 2, **changes})


def plans(model: ModelConfig, pair: str) -> QuantisedPlans:
    train, rollout = PAIRS[pair]
    quantised, _ = split_quantised(logical_tensors(model))
    sides = (megatron_layout(model, train, 256), train.ranks, vllm_rules_layout(model, rollout), range(rollout.world_size))
    return plan_quantised(quantised, *sides, budget_bytes=BUDGET)


def test_split_quantised_leaves_embeddings_norms_and_biases() -> None:
    quantised, rest = split_quantised(logical_tensors(blocky_model()))
    assert len(quantised) == 7 * 2
    assert {name.rsplit(".", 2)[-2] for name in (tensor.name for tensor in quantised)} == {
        f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")
    }
    assert {"model.embed_tokens.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.bias"} <= {t.name for t in rest}


def test_plan_quantised_moves_a_byte_per_weight_and_four_per_block() -> None:
    model = blocky_model()
    both = plans(model, "tp2_to_tp1dp2")
    weights = 2 * (256 * (512 + 256 + 256) + 512 * 256 + 3 * 256 * 512)
    # Each rank holds half of every weight and fetches the other half.
    assert both.values.costs[0].received_bytes == weights // 2
    assert both.scales.costs[0].received_bytes == weights // 2 // 128**2 * 4


def test_scales_lie_at_their_blocks() -> None:
    both = plans(blocky_model(), "tp1_to_tp1")
    piece = next(p for p in both.scales.copies[0] if p.destination == f"model.layers.0.self_attn.qkv_proj.weight{SCALE_SUFFIX}")
    # Query, key and value rows, 4 + 2 + 2 blocks of 2, one run on both sides.
    assert (piece.num_elements, piece.source_offset, piece.destination_offset) == (16, 0, 0)
    assert piece.source == f"decoder.layers.0.self_attention.linear_qkv.weight{SCALE_SUFFIX}"


def test_replicas_go_on_sharing_their_fragments() -> None:
    """The planner takes ranks with one tuple for one class."""
    model = blocky_model()
    quantised, rest = split_quantised(logical_tensors(model))
    layout = vllm_rules_layout(model, RolloutLayout(data=2))
    for part in (only(layout, rest), of_scales(layout, quantised)):
        assert part(0) is part(1)
        assert len(part(0)) > 0


def test_plan_quantised_rejects_a_cut_through_a_block() -> None:
    with pytest.raises(ValueError, match=r"rollout.quantization=fp8_per_block: .*linear_fc1.*blocks of 128 x 128"):
        plans(blocky_model(intermediate_size=320), "pp2_to_tp2")


def _transfer(pair: str) -> tuple[bool, bool]:
    """Two transfers; values, scales and other elements of this rank are what vLLM would make of the whole weights."""
    train, rollout = PAIRS[pair]
    model, rank = blocky_model(), dist.get_rank()
    quantised, _ = split_quantised(logical_tensors(model))
    stored = only(megatron_layout(model, train, 256), quantised)(rank)
    wanted = only(vllm_rules_layout(model, rollout), quantised)(rank)
    both = plans(model, pair)
    sources = allocate_matrices(stored, torch.bfloat16)
    destinations = {name: matrix.to(torch.float8_e4m3fn) for name, matrix in allocate_matrices(wanted, torch.float32).items()}
    scales = {
        name + SCALE_SUFFIX: torch.zeros(-(-matrix.shape[0] // 128), -(-matrix.shape[1] // 128))
        for name, matrix in destinations.items()
    }
    quantiser = BlockQuantiser(both.values, rank, sources)
    group = dist.group.WORLD
    values = ReshardExecutor(both.values, rank, sources, destinations, group, BUDGET, quantiser=quantiser)
    of_scales = ReshardExecutor(both.scales, rank, quantiser.scales, scales, group, BUDGET)
    equal_values = equal_scales = True
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        tensors = {t.name: torch.randn(t.shape, generator=generator).to(torch.bfloat16) for t in quantised}
        scatter_logical(stored, tensors, sources)
        values.run()
        of_scales.run()
        whole = allocate_matrices(wanted, torch.bfloat16)
        scatter_logical(wanted, tensors, whole)
        for name, matrix in whole.items():
            expected = scales_from_amax(block_amax_reference(matrix))
            spread = expected.repeat_interleave(128, 0).repeat_interleave(128, 1)[: matrix.shape[0], : matrix.shape[1]]
            codes = (matrix * (1.0 / spread)).to(torch.float8_e4m3fn)
            equal_values &= torch.equal(destinations[name].view(torch.uint8), codes.view(torch.uint8))
            equal_scales &= torch.equal(scales[name + SCALE_SUFFIX], expected)
    return equal_values, equal_scales


@pytest.mark.parametrize("pair", PAIRS)
def test_transfer_equals_quantisation_of_whole_weights(pair: str) -> None:
    world = PAIRS[pair][0].world_size
    for values, scales in run_distributed(world, _transfer, pair):
        assert values and scales
