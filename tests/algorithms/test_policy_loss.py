"""Policy losses: values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatron_rl.algorithms.loss_weights import loss_weights
from megatron_rl.algorithms.policy_loss import POLICY_LOSSES, PolicyLossInputs
from megatron_rl.config.training import SEQUENCE_LEVEL_LOSSES
from tests.algorithms.golden import LOGPROBS, LOSS_ADVANTAGES, LOSS_MASK, OLD_LOGPROBS

ALL = sorted(POLICY_LOSSES)
ROWS = torch.tensor([[0, 0, 0], [1, 1, 1]])


def make_inputs(logprobs, old=OLD_LOGPROBS, advantages=LOSS_ADVANTAGES, mask=LOSS_MASK, segments=ROWS, **settings: Any):
    settings = {"clip_low": 0.2, "clip_high": 0.28, "clip_c": 3.0} | settings
    return PolicyLossInputs(
        logprobs=logprobs,
        old_logprobs=old,
        advantages=advantages,
        mask=mask,
        segment_ids=segments,
        num_segments=int(segments.max()) + 1,
        **settings,
    )


def loss_and_gradient(name: str, mode: str, logprobs=LOGPROBS, mask=LOSS_MASK, **kwargs: Any):
    logprobs = logprobs.clone().requires_grad_()
    terms = POLICY_LOSSES[name](make_inputs(logprobs, mask=mask, **kwargs))
    loss = (terms.loss * loss_weights(mask, mode, mask.shape[1])).sum()
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss, gradient, terms


@pytest.mark.parametrize(
    ("name", "mode", "loss", "gradient"),
    [
        ("vanilla", "token-mean", -0.49814, [[-0.244281, -0.2, 0], [0, 0.12214, 0]]),
        ("gspo", "seq-mean-token-mean", -0.424823, [[0, 0, 0], [0.107588, 0.107588, 0]]),
        ("sapo", "seq-mean-token-mean", -0.73734, [[-0.201093, -0.166667, -0.26227], [0.072671, 0.150631, 0]]),
        ("cispo", "token-mean", 0.223267, [[-0.244281, -0.2, -0.256], [0.08, 0.12214, 0]]),
        # Row 0: -exp(0.16) / 3 for each token whose log-ratio is inside; row 1: 0.5 * exp(0) / 2; both over 2 samples.
        ("geo_mean", "seq-mean-token-mean", -0.336755, [[-0.195585, -0.195585, 0], [0, 0.125, 0]]),
        ("gpg", "token-mean", 0.13, [[-0.2, -0.2, -0.2], [0.1, 0.1, 0]]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_policy_loss_matches_golden_values(name, mode, loss, gradient):
    actual, actual_gradient, _ = loss_and_gradient(name, mode)
    assert actual.item() == pytest.approx(loss, abs=2e-6)
    torch.testing.assert_close(actual_gradient, torch.tensor(gradient), atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", ALL)
def test_policy_loss_ties_tokens_of_a_sample_only_at_sequence_level(name):
    moved = LOGPROBS.clone()
    moved[1, 1] += 0.01
    before, after = (POLICY_LOSSES[name](make_inputs(logprobs)).loss for logprobs in (LOGPROBS, moved))
    changed = before != after
    assert changed[1, 1]
    assert bool(changed[1, 0]) == (name in SEQUENCE_LEVEL_LOSSES)
    assert not changed[0].any()


def test_vanilla_diagnostics_match_golden_values():
    _, _, terms = loss_and_gradient("vanilla", "token-mean")
    assert terms.clipped.tolist() == [[False, False, True], [True, False, False]]
    inputs = make_inputs(LOGPROBS)
    assert (-inputs.log_ratio).sum().item() / 5 == pytest.approx(-0.12)


def test_vanilla_dual_clip_matches_hand_computed():
    one = torch.tensor([[True]])
    # rho = e^2 = 7.39 > c = 3 and A = -2: the loss stops at c * 2 = 6 and passes no gradient.
    args = {"old": torch.tensor([[-3.0]]), "advantages": torch.tensor([[-2.0]]), "mask": one, "segments": torch.tensor([[0]])}
    loss, gradient, terms = loss_and_gradient("vanilla", "token-sum", torch.tensor([[-1.0]]), **args)
    assert (loss.item(), gradient.item(), terms.clipped_lower.item()) == (6.0, 0.0, True)
    loss, gradient, terms = loss_and_gradient("vanilla", "token-sum", torch.tensor([[-1.0]]), **args, clip_c=None)
    assert loss.item() == pytest.approx(2 * 7.389056) and not terms.clipped_lower.item()


def test_clip_higher_is_asymmetric():
    ratio = torch.tensor([[1.25, 0.75]]).log()
    args = {
        "old": torch.zeros(1, 2),
        "advantages": torch.tensor([[1.0, -1.0]]),
        "mask": torch.ones(1, 2).bool(),
        "segments": torch.zeros(1, 2).long(),
    }
    _, gradient, terms = loss_and_gradient("vanilla", "token-sum", ratio, **args)
    assert terms.clipped.tolist() == [[False, True]]
    torch.testing.assert_close(gradient, torch.tensor([[-1.25, 0.0]]))


@pytest.mark.parametrize("name", ["vanilla", "gspo", "sapo", "cispo", "geo_mean"])
def test_on_policy_gradient_reduces_to_gpg(name):
    mode = "seq-mean-token-mean"
    expected = loss_and_gradient("gpg", mode, OLD_LOGPROBS)[1]
    torch.testing.assert_close(loss_and_gradient(name, mode, OLD_LOGPROBS)[1], expected)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e4], ids=str)
def test_garbage_outside_the_mask_changes_nothing(name, garbage):
    dirty = [torch.where(LOSS_MASK, x, garbage) for x in (LOGPROBS, OLD_LOGPROBS, LOSS_ADVANTAGES)]
    loss, gradient, terms = loss_and_gradient(name, "token-mean", dirty[0], old=dirty[1], advantages=dirty[2])
    expected_loss, expected_gradient, _ = loss_and_gradient(name, "token-mean")
    assert torch.equal(loss, expected_loss) and torch.equal(gradient, expected_gradient)
    assert terms.loss[1, 2] == 0


@pytest.mark.parametrize("name", ALL)
def test_policy_loss_invariant_to_packing(name):
    flat = POLICY_LOSSES[name](make_inputs(*[x.flatten() for x in (LOGPROBS, OLD_LOGPROBS, LOSS_ADVANTAGES, LOSS_MASK, ROWS)]))
    torch.testing.assert_close(flat.loss.view(2, 3), POLICY_LOSSES[name](make_inputs(LOGPROBS)).loss)


@pytest.mark.parametrize("name", ALL)
def test_all_masked_batch_has_zero_loss_and_gradient(name):
    loss, gradient, _ = loss_and_gradient(name, "token-mean", mask=torch.zeros(2, 3).bool())
    assert loss.item() == 0 and torch.equal(gradient, torch.zeros(2, 3))


@pytest.mark.parametrize("name", ALL)
def test_far_apart_policies_stay_finite(name):
    _, gradient, terms = loss_and_gradient(name, "token-mean", torch.full((2, 3), -300.0), old=torch.zeros(2, 3))
    assert torch.isfinite(terms.loss).all() and torch.isfinite(gradient).all()
