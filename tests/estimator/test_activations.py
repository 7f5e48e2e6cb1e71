"""Saved bytes against what autograd really saves on the CPU, and by hand for what only a GPU runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from megatron_rl.estimator.activations import (
    checkpoint_bytes_per_token,
    forward_working_bytes,
    layer_bytes_per_token,
    layers_in_flight,
    stage_activation_bytes,
)
from megatron_rl.parallel.layout import ParallelLayout
from tests.estimator.shapes import actor_on, small_model
from tests.support.distributed import run_distributed

NUM_TOKENS = 64
RNG_STATE_BYTES = 4
"""Of a recomputed attention, whatever the tokens."""


def saved_bytes(num_layers: int, weight_bytes: int, recompute: str | None, qk_norm: bool) -> int:
    """Bytes that autograd keeps of a forward pass over one document, parameters left out. Runs in a rank."""
    import torch

    from megatron_rl.config.training import RecomputeConfig
    from megatron_rl.models.gpt import build_stage
    from megatron_rl.parallel.groups import GroupRegistry, RoleGroups
    from megatron_rl.runtime.platform import Platform
    from megatron_rl.types.batches import PackedTokens

    found = Platform.detect()
    dtype = torch.bfloat16 if weight_bytes == 2 else torch.float32
    platform = Platform(found.device, dtype, found.backend, None)
    groups = RoleGroups.build(ParallelLayout(), GroupRegistry())
    model = small_model(
        architecture="qwen3" if qk_norm else "qwen2", qk_norm=qk_norm, qkv_bias=not qk_norm, num_layers=num_layers
    )
    recompute_config = RecomputeConfig.model_validate({"granularity": recompute})
    stage = build_stage(model, groups, platform, recompute=recompute_config)[0].train()
    for parameter in stage.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    own = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}
    packed = PackedTokens(
        tokens_T=torch.zeros(NUM_TOKENS, dtype=torch.int64),
        predicting_N=torch.arange(NUM_TOKENS),
        targets_N=torch.zeros(NUM_TOKENS, dtype=torch.int64),
        cu_seqlens=torch.tensor([0, NUM_TOKENS], dtype=torch.int32),
        lengths=(NUM_TOKENS,),
        rows=(0,),
    )
    kept: dict[int, tuple[int, Any]] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), x)  # alive, or its address would be used again
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        stage(packed)
    return sum(size for size, _ in kept.values())


CASES = [(2, None, False), (4, None, False), (2, "full", False), (2, "selective", False), (2, None, True)]


def bytes_per_layer() -> list[int]:
    """Two layers' bytes less one layer's, for every case. Runs in a rank."""
    return [saved_bytes(2, *case) - saved_bytes(1, *case) for case in CASES]


def test_layer_bytes_per_token_matches_autograd() -> None:
    measured = run_distributed(1, bytes_per_layer)[0]
    for (weight_bytes, recompute, qk_norm), found in zip(CASES, measured, strict=True):
        model = small_model(architecture="qwen3" if qk_norm else "qwen2", qk_norm=qk_norm, qkv_bias=not qk_norm)
        role = actor_on(ParallelLayout(), recompute=recompute or "none")
        if recompute == "full":
            expected = checkpoint_bytes_per_token(model, role, weight_bytes)
        else:
            expected = layer_bytes_per_token(model, role, weight_bytes=weight_bytes, on_gpu=False)
        extra = RNG_STATE_BYTES if recompute == "selective" else 0
        assert found == expected * NUM_TOKENS + extra, (weight_bytes, recompute, qk_norm)


def test_layer_bytes_per_token_on_gpu_matches_hand_computed() -> None:
    # H 8, Q 8, KV 4, F 16, 4 heads of 2, bf16: norms, two inputs, attention, MLP.
    expected = 2 * (2 * 8 + 4) + 2 * 2 * 8 + (2 * (2 * 8 + 2 * 4) + 4 * 4) + 3 * 2 * 16
    assert layer_bytes_per_token(small_model(), actor_on(ParallelLayout()), weight_bytes=2, on_gpu=True) == expected


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sequence_parallel"])
def test_layer_bytes_per_token_under_tensor_parallelism_matches_hand_computed(sequence_parallel: bool) -> None:
    role = actor_on(ParallelLayout(tensor=2, sequence_parallel=sequence_parallel))
    around = (2 * (2 * 8 + 4) + 2 * 2 * 8) / (2 if sequence_parallel else 1)
    expected = around + (48 + 16 + 96) / 2
    assert layer_bytes_per_token(small_model(), role, weight_bytes=2, on_gpu=True) == expected


def test_stage_activation_bytes_holds_one_micro_batch_per_stage_ahead() -> None:
    model, role = small_model(num_layers=4), actor_on(ParallelLayout(pipeline=4))
    held = [stage_activation_bytes(model, role, stage, weight_bytes=2, on_gpu=True, num_micro_batches=8) for stage in range(4)]
    one = 32 * layer_bytes_per_token(model, role, weight_bytes=2, on_gpu=True)
    assert held == [4 * one, 3 * one, 2 * one, one]
    assert stage_activation_bytes(model, role, 0, weight_bytes=2, on_gpu=True, num_micro_batches=2) == 2 * one


def test_layers_in_flight_of_an_interleaved_pipeline_matches_hand_computed() -> None:
    # Two stages of four layers in two chunks: the first stage warms up 2 + 2 chunks and starts another; the last 0 + 2.
    model, role = small_model(num_layers=8), actor_on(ParallelLayout(pipeline=2, virtual_pipeline=2))
    assert [layers_in_flight(model, role, stage, 8) for stage in range(2)] == [2 * 5, 2 * 3]
    assert layers_in_flight(model, role, 0, 2) == 2 * 4  # no more than there are chunks of micro-batches


def test_stage_activation_bytes_with_full_recompute_matches_hand_computed() -> None:
    role = replace(actor_on(ParallelLayout()), recompute="full")
    one = layer_bytes_per_token(small_model(), role, weight_bytes=2, on_gpu=True)
    expected = 32 * (2 * 8 * 2 + one)
    assert stage_activation_bytes(small_model(), role, 0, weight_bytes=2, on_gpu=True, num_micro_batches=1) == expected


def test_forward_working_bytes_matches_hand_computed() -> None:
    role = actor_on(ParallelLayout(tensor=2))
    assert forward_working_bytes(small_model(), role, 2) == 32 * 2 * (3 * 16 / 2 + 2 * 8)
