"""Workspaces of the LM head against the kernels' own tilings, and peaks that were measured on a GPU."""

from __future__ import annotations

import pytest

from megatron_rl.estimator.head_memory import (
    CPU_CHUNK_ELEMENTS,
    LEAST_TILE_ROWS,
    LOGIT_WORKSPACE_BYTES,
    TILE_ROWS,
    TOKEN_STEP,
    head_bytes,
    wide_cut_tokens,
)
from megatron_rl.parallel.layout import ParallelLayout
from tests.estimator.shapes import actor_on, small_deployment, small_model

GIB = 2**30


def kernel_gib(hidden: int, *, separable: bool, with_gradients: bool = True) -> float:
    """Of 16,384 tokens over 151,936 words, without the final norm, which the kernel benchmark does not run."""
    tokens = 16_384
    model = small_model(hidden_size=hidden, vocab_size=151_936)
    role = actor_on(ParallelLayout(), micro_batch_tokens=tokens, separable_loss=separable)
    whole = head_bytes(small_deployment(model=model), role, with_gradients=with_gradients)
    return (whole - tokens * hidden * 3 * 2) / GIB


@pytest.mark.parametrize(
    "hidden,separable,with_gradients,measured_gib",
    [
        (1536, True, True, 1.79),
        (3584, True, True, 2.46),
        (1536, False, True, 1.33),
        (3584, False, True, 2.09),
        (1536, False, False, 0.50),
        (3584, False, False, 0.50),
    ],
)
def test_head_bytes_matches_measured(hidden: int, separable: bool, with_gradients: bool, measured_gib: float) -> None:
    """Peaks of benchmarks/results/2026-12-01_h200_kernels.md."""
    found = kernel_gib(hidden, separable=separable, with_gradients=with_gradients)
    assert found == pytest.approx(measured_gib, rel=0.02)


def test_head_bytes_never_stores_all_logits() -> None:
    deployment = small_deployment(model=small_model(vocab_size=2**20))
    role = actor_on(ParallelLayout(), micro_batch_tokens=4096)
    assert head_bytes(deployment, role, with_gradients=False) == 4096 * 8 * 6 + 4096 * 8192 * 4


def test_head_bytes_of_a_critic_has_no_vocabulary() -> None:
    role = actor_on(ParallelLayout(), name="critic")
    assert head_bytes(small_deployment(), role, with_gradients=True) == 32 * 8 * 6 + 32 * 8 * 4


def test_head_bytes_on_cpu_matches_hand_computed() -> None:
    deployment = small_deployment(weight_bytes=4, on_gpu=False)
    expected = 32 * 8 * (4 + 4 + 4) + 3 * 32 * 64 * 4 + 64 * 8 * (4 + 4) + 32 * 8 * 4
    assert head_bytes(deployment, actor_on(ParallelLayout()), with_gradients=True) == expected


@pytest.mark.parametrize("tokens,rows", [(16_384, 151_936), (8_192, 128_256), (1_000, 49_152), (32, 64)])
def test_tilings_are_the_kernels(tokens: int, rows: int) -> None:
    pytest.importorskip("triton")
    from kernels import linear_logprob
    from kernels.linear_logprob import tiles
    from kernels.linear_logprob.triton import MAX_TILE_ROWS

    assert (LOGIT_WORKSPACE_BYTES, TILE_ROWS) == (tiles.WORKSPACE_BYTES, MAX_TILE_ROWS)
    assert (LEAST_TILE_ROWS, TOKEN_STEP) == (tiles.MIN_TILE_ROWS, tiles.TOKEN_STEP)
    assert CPU_CHUNK_ELEMENTS == linear_logprob.CPU_CHUNK_ELEMENTS
    assert wide_cut_tokens(tokens, rows, 2) == min(tokens, tiles.wide_tiling(tokens, rows, 2).num_tokens)
