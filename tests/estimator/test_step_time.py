"""Step seconds by hand, and how they move with the work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_rl.estimator.catalogue import find_gpu
from megatron_rl.estimator.coefficients import Coefficient, Coefficients
from megatron_rl.estimator.communication import data_parallel_s
from megatron_rl.estimator.flops import forward_flops, train_flops
from megatron_rl.estimator.step_time import (
    ADAM_BYTES_PER_PARAMETER,
    TimePart,
    num_micro_batches,
    optimizer_s,
    pass_cost,
    phase_seconds,
    step_parts,
    swap_s,
)
from megatron_rl.parallel.layout import ParallelLayout
from tests.estimator.shapes import actor_on, small_deployment, small_model, small_workload
from tests.estimator.test_memory import COUNT

H200 = find_gpu("H200")
# At micro-batches of 32 tokens half of the top is reached: a quarter of the peak.
COEFFICIENTS = replace(Coefficients(), update_top_frac=Coefficient(value=0.5), update_half_tokens=Coefficient(value=32.0))
USEFUL = 0.25 * 989e12


def test_update_frac_matches_hand_computed() -> None:
    assert COEFFICIENTS.update_frac(32) == 0.25 and COEFFICIENTS.update_frac(96) == 0.375


def test_num_micro_batches_matches_hand_computed() -> None:
    role = actor_on(ParallelLayout(data=2))
    # Eight samples of 32 tokens over two ranks: four micro-batches of 32; two optimizer steps of two each.
    assert num_micro_batches(role, small_workload()) == 4
    assert num_micro_batches(role, small_workload(), optimizer_steps=2) == 2
    assert num_micro_batches(role, small_workload(), optimizer_steps=4, passes=2) == 2


@pytest.mark.parametrize("recompute,factor", [("none", 1.0), ("full", 4 / 3)])
def test_pass_cost_of_training_matches_hand_computed(recompute: str, factor: float) -> None:
    role = actor_on(ParallelLayout(), recompute=recompute)
    cost = pass_cost(small_deployment(), role, small_workload(), H200, COEFFICIENTS, training=True)
    expected = train_flops(small_model(), [32] * 8) * factor / USEFUL
    assert cost.compute_s == pytest.approx(expected, rel=1e-12)
    assert cost.messages_s == cost.bubble_s == 0


def test_pass_cost_of_scoring_is_one_forward() -> None:
    role = actor_on(ParallelLayout(), recompute="full")
    cost = pass_cost(small_deployment(), role, small_workload(), H200, COEFFICIENTS, training=False)
    assert cost.compute_s == pytest.approx(forward_flops(small_model(), [32] * 8) / USEFUL, rel=1e-12)


def test_pass_cost_bubble_matches_hand_computed() -> None:
    role = actor_on(ParallelLayout(pipeline=2))
    cost = pass_cost(small_deployment(), role, small_workload(), H200, COEFFICIENTS, training=True)
    assert cost.bubble_s == pytest.approx((cost.compute_s + cost.messages_s) * 1 / 8, rel=1e-12)


def test_optimizer_s_matches_hand_computed() -> None:
    layout = ParallelLayout(data=2)
    deployment = small_deployment(layout)
    messages, adam = optimizer_s(deployment, deployment.roles[0], H200, COEFFICIENTS)
    assert messages == data_parallel_s(COUNT, layout, H200, COEFFICIENTS.collective_frac.value)
    rate = H200.memory_bytes_per_s * COEFFICIENTS.memory_frac.value
    assert adam == pytest.approx(COUNT / 2 * ADAM_BYTES_PER_PARAMETER / rate, rel=1e-12)


def test_swap_s_matches_hand_computed() -> None:
    deployment = small_deployment(offload="swap")
    # Master copy and moments there and back; the actor's weights stay.
    assert swap_s(deployment, deployment.roles[0], H200) == pytest.approx(2 * 12 * COUNT / 64e9, rel=1e-12)
    assert swap_s(small_deployment(), deployment.roles[0], H200) == 0


def test_step_parts_update_every_pass_and_step() -> None:
    once = step_parts(small_deployment(), small_workload(), H200, COEFFICIENTS, None)
    work = small_workload(actor_passes=3, actor_optimizer_steps=6)
    thrice = step_parts(small_deployment(), work, H200, COEFFICIENTS, None)

    def seconds(parts: tuple[TimePart, ...], component: str) -> float:
        return sum(p.seconds for p in parts if (p.phase, p.component) == ("update", component))

    assert seconds(thrice, "compute") == pytest.approx(3 * seconds(once, "compute"), rel=1e-9)
    assert seconds(thrice, "optimizer") == pytest.approx(6 * seconds(once, "optimizer"), rel=1e-9)


def test_phase_seconds_takes_the_slowest_pool_of_each_phase() -> None:
    fast = (TimePart("rollout", "engine", "generate", 4.0), TimePart("update", "actor", "compute", 1.0))
    slow = (TimePart("update", "critic", "compute", 3.0),)
    found = phase_seconds([fast, slow], other_frac=0.3)
    assert found["rollout"] == 4 and found["update"] == 3
    assert found["other"] == pytest.approx(0.3 * sum(found.values()), rel=1e-12)


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
