"""KL estimators and controllers."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.algorithms.kl import AdaptiveKlController, FixedKlController, build_kl_controller, kl_penalty
from megatron_rl.config.algorithm import KlControlConfig
from tests.algorithms.golden import LOGPROBS, REF_LOGPROBS

GOLDEN = {
    "k1": [[0.1, 0.1, 0], [-0.1, 0.3, -0.2]],
    "k2": [[0.005, 0.005, 0], [0.005, 0.045, 0.02]],
    "k3": [[0.004837, 0.004837, 0], [0.005171, 0.040818, 0.021403]],
    "abs": [[0.1, 0.1, 0], [0.1, 0.3, 0.2]],
}
GRADIENTS = {
    "k1": [[1, 1, 1], [1, 1, 1]],
    "k2": [[0.1, 0.1, 0], [-0.1, 0.3, -0.2]],
    "k3": [[0.095163, 0.095163, 0], [-0.105171, 0.259182, -0.221403]],
}


@pytest.mark.parametrize("kind", sorted(GOLDEN))
def test_kl_matches_golden_values(kind):
    torch.testing.assert_close(kl_penalty(LOGPROBS, REF_LOGPROBS, kind), torch.tensor(GOLDEN[kind]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", sorted(GRADIENTS))
def test_kl_gradient_matches_hand_computed(kind):
    logprobs = LOGPROBS.clone().requires_grad_()
    kl_penalty(logprobs, REF_LOGPROBS, kind).sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor(GRADIENTS[kind]).float(), atol=1e-6, rtol=0)


def test_k3_of_far_apart_logprobs_is_finite():
    far = kl_penalty(torch.tensor([-500.0]), torch.tensor([0.0]), "k3")
    assert torch.isfinite(far).all() and far > 0


def test_k3_mean_matches_the_exact_divergence():
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    exact = (policy * (policy / reference).log()).sum()
    for kind in ("k1", "k3"):
        estimate = kl_penalty(policy.log(), reference.log(), kind)
        torch.testing.assert_close((policy * estimate).sum(), exact)


def test_adaptive_controller_matches_golden_values():
    controller = AdaptiveKlController(value=0.2, target=0.1, horizon=10000)
    controller.adapt(kl=0.3, num_samples=256)
    assert controller.value == pytest.approx(0.201024)
    controller.adapt(kl=0.09, num_samples=100)
    assert controller.value == pytest.approx(0.201024 * (1 - 0.1 * 100 / 10000))


def test_fixed_controller_stays():
    controller = FixedKlController(0.01)
    controller.adapt(kl=100.0, num_samples=256)
    assert controller.value == 0.01


def test_adaptive_controller_roundtrips():
    first = build_kl_controller(KlControlConfig(type="adaptive", kl_coef=0.2))
    first.adapt(kl=5.0, num_samples=64)
    second = build_kl_controller(KlControlConfig(type="adaptive", kl_coef=0.2))
    second.load_state_dict(first.state_dict())
    assert second.value == first.value != 0.2
