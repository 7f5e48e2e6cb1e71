"""Step seconds by hand, and how they move with the work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_rl.estimator.catalogue import find_gpu
from megatron_rl.estimator.coefficients import Coefficient, Coefficients, seconds
from megatron_rl.estimator.communication import data_parallel_s
from megatron_rl.estimator.step_time import (
    TimePart,
    num_micro_batches,
    optimizer_cost,
    pass_cost,
    phase_seconds,
    step_parts,
    swap_s,
)
from megatron_rl.estimator.work import Work
from megatron_rl.parallel.layout import ParallelLayout
from tests.estimator.shapes import actor_on, small_deployment, small_workload
from tests.estimator.test_memory import COUNT

H200 = find_gpu("H200")
HALF = Coefficient(value=0.5)
KNOWN = replace(Coefficients(), matmul_frac=HALF, attention_frac=HALF, stream_frac=HALF, memory_frac=HALF)


def test_num_micro_batches_matches_hand_computed() -> None:
    role = actor_on(ParallelLayout(data=2))
    # Eight samples of 32 tokens over two ranks: four micro-batches of 32; two optimizer steps of two each.
    assert num_micro_batches(role, small_workload()) == 4
    assert num_micro_batches(role, small_workload(), optimizer_steps=2) == 2
    assert num_micro_batches(role, small_workload(), optimizer_steps=4, passes=2) == 2


@pytest.mark.parametrize("training", [True, False], ids=["update", "scoring"])
def test_pass_cost_matches_hand_computed(training: bool) -> None:
    cost = pass_cost(small_deployment(), actor_on(ParallelLayout()), small_workload(), H200, KNOWN, training=training)
    layers = 2 * (64 + 32 + 32 + 64 + 384)
    # Eight samples of 16 + 16 tokens in eight micro-batches; only answers meet the head of 64 words.
    products = 3 if training else 1
    assert cost.work.matmul_flops == products * (2 * layers * 256 + 2 * 128 * 64 * 8)
    assert cost.work.attention_flops == (3.5 if training else 1) * (2 * 4 * 4) * 8 * 32**2
    assert cost.work.layer_passes == products * 2 * 8
    assert cost.messages_s == cost.bubble_frac == 0


def test_pass_cost_of_a_loss_over_whole_samples_makes_the_logits_twice() -> None:
    def flops(separable: bool) -> float:
        role = actor_on(ParallelLayout(), separable_loss=separable)
        return pass_cost(small_deployment(), role, small_workload(), H200, KNOWN, training=True).work.matmul_flops

    assert flops(False) - flops(True) == 2 * 128 * 64 * 8


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_pass_cost_of_recomputation_matches_hand_computed(recompute: str) -> None:
    def work(recompute: str) -> Work:
        role = actor_on(ParallelLayout(), recompute=recompute)
        return pass_cost(small_deployment(), role, small_workload(), H200, KNOWN, training=True).work

    plain, again = work("none"), work(recompute)
    layers = 2 * (64 + 32 + 32 + 64 + 384)
    assert again.attention_flops - plain.attention_flops == (2 * 4 * 4) * 8 * 32**2
    assert again.matmul_flops - plain.matmul_flops == (2 * layers * 256 if recompute == "full" else 0)


def test_pass_cost_uses_the_squares_of_unequal_lengths() -> None:
    work = small_workload(squared_tokens=2 * 32.0**2)
    cost = pass_cost(small_deployment(), actor_on(ParallelLayout()), work, H200, KNOWN, training=False)
    assert cost.work.attention_flops == 2 * (2 * 4 * 4) * 8 * 32**2


@pytest.mark.parametrize("chunks,expected", [(1, 1 / 8), (2, 1 / 16)])
def test_pass_cost_bubble_matches_hand_computed(chunks: int, expected: float) -> None:
    role = actor_on(ParallelLayout(pipeline=2, virtual_pipeline=chunks))
    assert pass_cost(small_deployment(), role, small_workload(), H200, KNOWN, training=True).bubble_frac == expected


def test_seconds_of_work_matches_hand_computed() -> None:
    work = Work(matmul_flops=989e12, streamed_bytes=4.8e12, layer_passes=2)
    assert seconds(work, H200, KNOWN) == pytest.approx(2 + 2)
    assert seconds(replace(work, layer_passes=1e6), H200, KNOWN) == pytest.approx(1e6 * KNOWN.layer_pass_s.value)
    assert work.times(2) + work == work.times(3)


def test_pass_cost_of_tensor_parallel_ranks_launches_every_layer_on_each() -> None:
    role = actor_on(ParallelLayout(tensor=2))
    cost = pass_cost(small_deployment(), role, small_workload(), H200, KNOWN, training=False)
    assert cost.work.layer_passes == 2 * 8


def test_optimizer_cost_matches_hand_computed() -> None:
    layout = ParallelLayout(data=2)
    deployment = small_deployment(layout)
    cost = optimizer_cost(deployment, deployment.roles[0], H200, KNOWN, 3)
    assert cost.messages_s == 3 * data_parallel_s(COUNT, layout, H200, KNOWN.collective_frac.value)
    # All gradients zeroed; of half of them norm and step: f32 gradients twice, master and moments there and back, weights.
    assert cost.work.copied_bytes == 3 * (4 * COUNT + COUNT / 2 * (2 * 4 + 2 * 12 + 2))


def test_swap_s_matches_hand_computed() -> None:
    role = actor_on(ParallelLayout(), optimizer="own_phase", gradients="own_phase")
    rate = 64e9 * KNOWN.link_frac.value
    # Master copy and moments there and back; gradients are made anew and the actor's weights stay.
    assert swap_s(small_deployment(), role, H200, KNOWN) == pytest.approx(2 * 12 * COUNT / rate, rel=1e-12)
    assert swap_s(small_deployment(), actor_on(ParallelLayout()), H200, KNOWN) == 0
    frozen = actor_on(ParallelLayout(), name="reference", trained=False, weights="own_phase")
    assert swap_s(small_deployment(), frozen, H200, KNOWN) == pytest.approx(2 * 2 * COUNT / rate, rel=1e-12)


def test_step_parts_leave_out_log_probs_that_nobody_needs() -> None:
    parts = step_parts(small_deployment(), small_workload(scores_actor=False), H200, KNOWN, None)
    assert "scoring" not in {part.phase for part in parts}


def test_step_parts_update_every_pass_and_step() -> None:
    once = step_parts(small_deployment(), small_workload(), H200, KNOWN, None)
    work = small_workload(actor_passes=3, actor_optimizer_steps=6)
    thrice = step_parts(small_deployment(), work, H200, KNOWN, None)

    def component_s(parts: tuple[TimePart, ...], component: str) -> float:
        return sum(p.seconds for p in parts if (p.phase, p.component) == ("update", component))

    assert component_s(thrice, "forward and backward") == pytest.approx(3 * component_s(once, "forward and backward"), rel=0.2)
    assert component_s(thrice, "optimizer") == pytest.approx(6 * component_s(once, "optimizer"), rel=1e-9)


def test_phase_seconds_takes_the_slowest_pool_of_each_phase() -> None:
    fast = (TimePart("rollout", "engine", "generate", 4.0), TimePart("update", "actor", "compute", 1.0))
    slow = (TimePart("update", "critic", "compute", 3.0),)
    found = phase_seconds([fast, slow])
    assert found == {"rollout": 4, "scoring": 0, "update": 3, "switch-over": 0, "other": 0}


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.integers(1, 64),
    tokens=st.integers(8, 512),
    layout=st.sampled_from([ParallelLayout(), ParallelLayout(tensor=2), ParallelLayout(pipeline=2), ParallelLayout(data=2)]),
)
def test_step_parts_is_monotonic(prompts: int, tokens: int, layout: ParallelLayout) -> None:
    """More prompts and longer answers never take less time; a faster card never takes more."""
    deployment = small_deployment(layout)

    def total(prompts: int, tokens: int, card: str) -> float:
        work = small_workload(prompts_per_step=prompts, response_tokens=tokens, max_response_tokens=tokens)
        return sum(part.seconds for part in step_parts(deployment, work, find_gpu(card), Coefficients(), None))

    base = total(prompts, tokens, "H100")
    assert total(2 * prompts, tokens, "H100") >= base
    assert total(prompts, 2 * tokens, "H100") >= base
    assert total(prompts, tokens, "H200") <= base <= total(prompts, tokens, "A100-40GB")
