"""Advantage estimators against hand-computed and golden values, identities and invariances."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_rl.algorithms.advantages import ADVANTAGE_ESTIMATORS, AdvantageInputs
from megatron_rl.algorithms.reward_shaping import token_rewards
from tests.algorithms.golden import GROUPS, MASK, REWARDS, VALUES

ALL = sorted(ADVANTAGE_ESTIMATORS)
GROUPED = ["grpo", "dr_grpo", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"]


def make_inputs(rewards_BS=REWARDS, mask_BS=MASK, values_BS=VALUES, groups_B=GROUPS, valid_B=None, **settings: Any):
    valid = torch.ones(len(mask_BS), dtype=torch.bool) if valid_B is None else valid_B
    return AdvantageInputs(
        token_rewards_BS=rewards_BS, mask_BS=mask_BS, values_BS=values_BS, group_ids_B=groups_B, valid_B=valid, **settings
    )


def outcome_inputs(rewards: list[float], groups: list[int], lengths: list[int] | None = None, **settings: Any):
    """One reward per sample on its last token."""
    lengths_B = torch.tensor(lengths or [3] * len(rewards))
    mask = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
    rewards_BS = token_rewards(torch.tensor(rewards), torch.zeros(mask.shape), mask, 0.0)
    valid = ~torch.tensor(rewards).isnan()
    return make_inputs(rewards_BS, mask, torch.zeros(mask.shape), torch.tensor(groups), valid, **settings)


def estimate(name: str, inputs: AdvantageInputs) -> tuple[torch.Tensor, torch.Tensor]:
    return ADVANTAGE_ESTIMATORS[name](inputs)


def close(actual: torch.Tensor, expected: Any, atol: float = 2e-6) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


def test_gae_matches_golden_values():
    advantages, returns = estimate("gae", make_inputs(gamma=0.9, lam=0.95))
    expected_returns = [[0.751568, 0.8685, 1, 0], [-0.618353, -0.728482, -0.8415, -1], [1.728, 2, 0, 0], [0.432, 0, 0.5, 0]]
    expected_advantages = [
        [0.502968, 0.521426, 0.555763, 0],
        [-0.881331, -1.110387, -0.906563, -1.624373],
        [1.131319, 1.536824, 0, 0],
        [0.045611, 0, 0.228743, 0],
    ]
    close(returns, expected_returns)
    close(advantages, expected_advantages)


def test_gae_matches_hand_computed():
    mask = torch.tensor([[True, False, True]])
    inputs = make_inputs(
        torch.tensor([[0.0, 9, 1]]), mask, torch.tensor([[0.5, 9, 0.25]]), torch.tensor([0]), gamma=0.5, lam=0.5, whiten=False
    )
    # t = 2: 1 - 0.25; t = 1: 0 + 0.5 * 0.25 - 0.5 + 0.25 * 0.75. The gap between them neither discounts nor blocks.
    advantages, returns = estimate("gae", inputs)
    close(advantages, [[-0.1875, 0, 0.75]])
    close(returns, [[0.3125, 0, 1.0]])


def test_gae_with_lambda_one_reduces_to_returns_minus_values():
    inputs = make_inputs(gamma=0.9, lam=1.0, whiten=False)
    advantages, returns = estimate("gae", inputs)
    close(returns, inputs.returns_BS.float())
    close(advantages, (inputs.returns_BS.float() - VALUES) * MASK)


def test_gae_with_lambda_zero_reduces_to_one_step_errors():
    advantages, _ = estimate("gae", make_inputs(gamma=1.0, lam=0.0, whiten=False))
    close(advantages[0], [0.1, 0.1, 0.7, 0])


def gae_by_loop(rewards: list[float], values: list[float], gamma: float, lam: float) -> torch.Tensor:
    """Advantages of one full row in Python floats."""
    advantages, carry, following = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        carry = rewards[t] + gamma * following - values[t] + gamma * lam * carry
        following = values[t]
        advantages[t] = carry
    return torch.tensor(advantages)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9999, 1.0), (0.999, 0.97)], ids=str)
def test_gae_of_4096_bf16_tokens_matches_reference(gamma, lam):
    steps = 4096
    values = torch.randn(1, steps, generator=torch.Generator().manual_seed(0)).bfloat16()
    rewards = torch.zeros(1, steps, dtype=torch.bfloat16)
    rewards[0, -1] = 1.0
    mask = torch.ones(1, steps, dtype=torch.bool)
    inputs = make_inputs(rewards, mask, values, torch.tensor([0]), gamma=gamma, lam=lam, whiten=False)
    advantages, returns = estimate("gae", inputs)
    expected = gae_by_loop(rewards[0].tolist(), values[0].tolist(), gamma, lam)
    close(advantages[0], expected, atol=2e-6)
    close(returns[0], expected + values[0].float(), atol=2e-6)
    if gamma == lam == 1.0:
        assert abs(returns[0, 0].item() - 1.0) < 1e-6


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("grpo", [0.707106, -0.707106, 0.707106, -0.707106]),
        ("dr_grpo", [1, -1, 0.75, -0.75]),
        ("rloo", [2, -2, 1.5, -1.5]),
        ("opo", [1.142857, -0.857143, 0.75, -0.75]),
        ("gpg", [1, -1, 0.75, -0.75]),
        ("reinforce_plus_plus_baseline", [1.139889, -0.949907, 0.878664, -0.688683]),
    ],
)
def test_group_estimator_matches_golden_values(name, rows):
    advantages, _ = estimate(name, make_inputs())
    close(advantages, torch.tensor(rows)[:, None] * MASK)


def test_grpo_without_std_reduces_to_dr_grpo():
    torch.testing.assert_close(estimate("grpo", make_inputs(divide_by_std=False)), estimate("dr_grpo", make_inputs()))


def test_opo_with_equal_lengths_reduces_to_dr_grpo():
    inputs = outcome_inputs([1.0, 0.0, 0.5], [0, 0, 0])
    torch.testing.assert_close(estimate("opo", inputs), estimate("dr_grpo", inputs))


def test_reinforce_plus_plus_matches_golden_values():
    advantages, returns = estimate("reinforce_plus_plus", make_inputs(gamma=0.9))
    close(returns, [[0.81, 0.9, 1, 0], [-0.729, -0.81, -0.9, -1], [1.8, 2, 0, 0], [0.45, 0, 0.5, 0]])
    expected = [
        [0.411139, 0.494393, 0.586898, 0],
        [-1.012501, -1.08743, -1.170684, -1.263188],
        [1.326932, 1.51194, 0, 0],
        [0.078124, 0, 0.124376, 0],
    ]
    close(advantages, expected)


def test_returns_skip_observation_tokens():
    inputs = make_inputs(
        torch.tensor([[0.0, 0, 0, 0, 2, 0]]),
        torch.tensor([[1, 1, 0, 0, 1, 0]]).bool(),
        torch.zeros(1, 6),
        torch.tensor([0]),
        gamma=0.5,
    )
    close(inputs.returns_BS.float(), [[0.5, 1, 0, 0, 2, 0]])


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("reward", [0.1, 1.0, 1000.1, -3.3], ids=str)
def test_equal_rewards_give_exactly_zero(name, reward):
    inputs = outcome_inputs([reward] * 7 + [1.0, 0.0], [0] * 7 + [1, 1])
    advantages, _ = estimate(name, inputs)
    assert torch.equal(advantages[:7], torch.zeros(7, 3))
    assert inputs.group_stats().zero_variance_frac == 0.5


@pytest.mark.parametrize("name", GROUPED)
def test_rewards_equal_up_to_rounding_give_exactly_zero(name):
    third = torch.tensor(1.0) / 3
    nudged = torch.nextafter(third, torch.tensor(1.0))
    advantages, _ = estimate(name, outcome_inputs([third.item(), nudged.item(), third.item()], [0, 0, 0]))
    assert torch.equal(advantages, torch.zeros(3, 3))


@pytest.mark.parametrize("name", GROUPED)
def test_one_deviating_reward_stays_bounded(name):
    advantages, _ = estimate(name, outcome_inputs([0.35] * 7 + [0.0], [0] * 8))
    assert advantages.abs().max() < 5


@pytest.mark.parametrize("name", GROUPED)
def test_singleton_group_gives_zero(name):
    advantages, _ = estimate(name, outcome_inputs([5.0, 1.0, 0.0], [0, 1, 1]))
    assert torch.equal(advantages[0], torch.zeros(3))
    assert advantages[1:].abs().min() > 0


@pytest.mark.parametrize("name", GROUPED)
def test_invalid_sample_stays_out_of_the_baseline(name):
    with_nan = estimate(name, outcome_inputs([1.0, 0.0, float("nan"), 1.0], [0, 0, 0, 0]))[0]
    without = estimate(name, outcome_inputs([1.0, 0.0, 1.0], [0, 0, 0]))[0]
    torch.testing.assert_close(with_nan[[0, 1, 3]], without)
    assert torch.equal(with_nan[2], torch.zeros(3))


@pytest.mark.parametrize("name", ALL)
def test_group_without_valid_sample_gives_zero(name):
    nan = float("nan")
    advantages, returns = estimate(name, outcome_inputs([nan, nan, 1.0, 0.0], [0, 0, 1, 1]))
    assert torch.equal(advantages[:2], torch.zeros(2, 3)) and torch.equal(returns[:2], torch.zeros(2, 3))
    assert torch.isfinite(advantages).all()


def test_inputs_reject_nan_reward_of_valid_sample():
    with pytest.raises(ValueError, match=r"samples \[1\].*reward.on_invalid"):
        make_inputs(torch.tensor([[1.0], [float("nan")]]), torch.ones(2, 1).bool(), torch.zeros(2, 1), torch.tensor([0, 0]))


@pytest.mark.parametrize("name", ALL)
def test_empty_response_contributes_nothing(name):
    full = outcome_inputs([1.0, 0.0, 3.0], [0, 0, 0], lengths=[3, 2, 3])
    mask = full.mask_BS.clone()
    mask[2] = False
    emptied = dataclasses.replace(full, mask_BS=mask)
    two = outcome_inputs([1.0, 0.0], [0, 0], lengths=[3, 2])
    advantages, _ = estimate(name, emptied)
    torch.testing.assert_close(advantages[:2], estimate(name, two)[0])
    assert torch.equal(advantages[2], torch.zeros(3))


@pytest.mark.parametrize("name", ALL)
def test_all_masked_batch_gives_zero(name):
    inputs = make_inputs(mask_BS=torch.zeros_like(MASK))
    for tensor in estimate(name, inputs):
        assert torch.equal(tensor, torch.zeros(4, 4))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e4], ids=str)
def test_garbage_outside_the_mask_changes_nothing(name, garbage):
    clean = estimate(name, make_inputs(gamma=0.9, lam=0.95))
    dirty = make_inputs(torch.where(MASK, REWARDS, garbage), MASK, torch.where(MASK, VALUES, garbage), gamma=0.9, lam=0.95)
    for actual, expected in zip(estimate(name, dirty), clean, strict=True):
        assert torch.equal(actual, expected)
        assert torch.equal(actual[~MASK], torch.zeros_like(actual[~MASK]))


@pytest.mark.parametrize("name", ALL)
def test_estimator_invariant_to_padding_side(name):
    def padded(left: int, right: int) -> torch.Tensor:
        shift = lambda x: torch.nn.functional.pad(x, (left, right))  # noqa: E731
        inputs = make_inputs(shift(REWARDS), shift(MASK), shift(VALUES), gamma=0.9, lam=0.95)
        return estimate(name, inputs)[0][:, left : left + 4]

    torch.testing.assert_close(padded(3, 0), padded(0, 3), atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(6)), seed=st.integers(0, 99))
def test_estimator_invariant_to_order(name, order, seed):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 6, 5, generator=generator)
    mask = torch.rand(6, 5, generator=generator) < 0.7
    groups = torch.tensor([7, 7, 3, 3, 7, 3])
    permutation = torch.tensor(order)
    straight = estimate(name, make_inputs(rewards, mask, values, groups, gamma=0.9, lam=0.9))
    permuted = estimate(
        name, make_inputs(rewards[permutation], mask[permutation], values[permutation], groups[permutation], gamma=0.9, lam=0.9)
    )
    for actual, expected in zip(permuted, straight, strict=True):
        torch.testing.assert_close(actual, expected[permutation], atol=1e-6, rtol=1e-6)


def test_groups_follow_ids_not_positions():
    interleaved = estimate("dr_grpo", outcome_inputs([1.0, 10.0, 0.0, 30.0], [0, 1, 0, 1]))[0][:, 0]
    close(interleaved, [0.5, -10, -0.5, 10])
