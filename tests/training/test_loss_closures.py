"""Losses of predicted tokens: the sum over any cut equals the whole, in value, gradient and metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from megatron_rl.algorithms.loss_weights import loss_weights
from megatron_rl.config.training import ActorConfig, CriticConfig
from megatron_rl.training.loss_closures import LossFunction, PolicyLoss, SupervisedLoss, ValueLoss, add_up
from megatron_rl.types.batches import LossInputs

LENGTHS = [7, 5, 6, 3, 7, 4, 2, 5]
PROMPTS = [2, 1, 3, 3, 1, 2, 1, 2]  # Sample 3 has an empty response.
SAMPLES, WIDTH = len(LENGTHS), max(LENGTHS)


def make_mask() -> torch.Tensor:
    positions = torch.arange(WIDTH)
    lengths, prompts = torch.tensor(LENGTHS)[:, None], torch.tensor(PROMPTS)[:, None]
    return (positions >= prompts) & (positions < lengths)


def make_fields() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = ("old_logprobs", "ref_logprobs", "values", "advantages", "returns", "importance_weights")
    fields = {name: torch.randn(SAMPLES, WIDTH, generator=generator) * 0.3 for name in names}
    fields["importance_weights"] = fields["importance_weights"].exp()
    return fields


def predicted(x_BS: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """The counted tokens' cells of some samples, end to end."""
    mask = make_mask()
    return torch.cat([x_BS[row][mask[row]] for row in rows])


def loss_inputs(rows: list[int], mode: str) -> LossInputs:
    mask = make_mask()
    return LossInputs(
        loss_weights_N=predicted(loss_weights(mask, mode, 6), rows),
        samples_N=torch.arange(len(rows)).repeat_interleave(mask[rows].sum(1)),
        num_samples=len(rows),
        num_response_tokens=int(mask.sum()),
        **{f"{name}_N": predicted(value, rows) for name, value in make_fields().items()},
    )


def run(loss_function: LossFunction, cut: list[list[int]], mode: str, slice_length: int | None = None):
    """Total loss, gradients of outputs and entropies ``[2, B, S]``, and merged metrics over micro-batches and slices."""
    generator = torch.Generator().manual_seed(1)
    leaf = (torch.randn(2, SAMPLES, WIDTH, generator=generator) * 0.3).requires_grad_()
    total, metrics = torch.zeros(()), []
    for rows in cut:
        inputs, outputs, entropy = loss_inputs(rows, mode), predicted(leaf[0], rows), predicted(leaf[1], rows)
        step = slice_length or max(1, outputs.numel())
        for start in range(0, outputs.numel(), step):
            part = slice(start, start + step)
            loss, partial = loss_function(outputs[part], entropy[part] if loss_function.needs_entropy else None, inputs[part])
            assert not any(value.requires_grad for value, _ in partial.values())
            total = total + loss
            metrics.append(partial)
    total.backward()
    return total.detach(), leaf.grad, {name: value for name, (value, _) in add_up(metrics).items()}


LOSSES = {
    "vanilla": PolicyLoss(ActorConfig(entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.1)),
    "gspo": PolicyLoss(ActorConfig(policy_loss="gspo")),
    "cispo": PolicyLoss(ActorConfig(policy_loss="cispo")),
    "sapo": PolicyLoss(ActorConfig(policy_loss="sapo")),
    "geo_mean": PolicyLoss(ActorConfig(policy_loss="geo_mean")),
    "gpg": PolicyLoss(ActorConfig(policy_loss="gpg")),
    "value": ValueLoss(CriticConfig(cliprange_value=0.2)),
    "supervised": SupervisedLoss(),
}
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
WHOLE = [list(range(SAMPLES))]
CUTS = {
    "4": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "1": [[row] for row in range(SAMPLES)],
    "dynamic": [[7, 2, 0], [3], [4, 1, 6, 5]],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("cut", sorted(CUTS))
def test_loss_invariant_to_microbatching(name, mode, cut):
    loss, gradient, metrics = run(LOSSES[name], WHOLE, mode)
    cut_loss, cut_gradient, cut_metrics = run(LOSSES[name], CUTS[cut], mode)
    torch.testing.assert_close(cut_loss, loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cut_gradient, gradient, rtol=1e-5, atol=1e-7)
    assert gradient.abs().sum() > 0
    torch.testing.assert_close(cut_metrics, metrics, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(name for name, loss in LOSSES.items() if loss.is_separable))
def test_separable_loss_invariant_to_slicing(name):
    loss, gradient, metrics = run(LOSSES[name], WHOLE, "seq-mean-token-mean")
    cut_loss, cut_gradient, cut_metrics = run(LOSSES[name], CUTS["dynamic"], "seq-mean-token-mean", slice_length=3)
    torch.testing.assert_close(cut_loss, loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cut_gradient, gradient, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(cut_metrics, metrics, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["vanilla", "gspo", "cispo", "sapo", "geo_mean", "gpg"])
def test_policy_loss_without_old_logprobs_takes_its_own(name):
    inputs = loss_inputs([0, 1, 2], "token-mean")
    answers = []
    for given in (True, False):
        logprobs = torch.linspace(-2.0, -0.5, inputs.advantages_N.numel(), requires_grad=True)
        old = logprobs.detach().clone() if given else None
        loss, metrics = LOSSES[name](logprobs, torch.zeros_like(logprobs), replace(inputs, old_logprobs_N=old))
        loss.backward()
        answers.append((loss.item(), logprobs.grad.tolist(), {key: value.item() for key, (value, _) in metrics.items()}))
    assert answers[0] == answers[1]
    assert any(answers[0][1])


@pytest.mark.parametrize(
    "config",
    [
        ActorConfig(),
        ActorConfig(clip_ratio_low=0.1, clip_ratio_high=0.3, clip_ratio_c=None, entropy_coeff=0.01),
        *(ActorConfig(use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type=kind) for kind in ("k1", "k2", "k3", "abs")),
    ],
    ids=["plain", "bounds_entropy", "k1", "k2", "k3", "abs"],
)
def test_policy_loss_in_one_pass_matches_policy_loss(config):
    loss_function, inputs = PolicyLoss(config), loss_inputs([0, 1, 2, 4], "token-mean")
    answers = []
    for evaluate in (loss_function, loss_function.in_one_pass):
        generator = torch.Generator().manual_seed(1)
        leaf = (torch.randn(2, inputs.advantages_N.numel(), generator=generator) * 0.5).requires_grad_()
        loss, metrics = evaluate(leaf[0], leaf[1], inputs)
        loss.backward()
        answers.append((loss.detach(), leaf.grad, {name: value for name, (value, _) in metrics.items()}))
    for expected, actual in zip(*answers, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)


def test_sequence_level_losses_are_not_separable():
    assert {name for name, loss in LOSSES.items() if not loss.is_separable} == {"gspo", "geo_mean"}


def test_policy_loss_matches_hand_computed():
    """One token of four: ratio 1, A = 2, weight 0.5, importance 0.5, entropy 3, KL (k1) 1."""
    config = ActorConfig(entropy_coeff=0.1, use_kl_loss=True, kl_loss_coef=0.2, kl_loss_type="k1")
    one = lambda value: torch.tensor([value])  # noqa: E731
    inputs = LossInputs(
        loss_weights_N=one(0.5),
        old_logprobs_N=one(-1.0),
        ref_logprobs_N=one(-2.0),
        values_N=one(0.0),
        advantages_N=one(2.0),
        returns_N=one(0.0),
        importance_weights_N=one(0.5),
        samples_N=one(0),
        num_samples=1,
        num_response_tokens=4,
    )
    loss, metrics = PolicyLoss(config)(one(-1.0), one(3.0), inputs)
    values = {name: value.item() for name, (value, _) in metrics.items()}
    assert loss.item() == pytest.approx(-2 * 0.5 * 0.5 - 0.1 * 0.5 * 3 + 0.2 * 0.5 * 1)
    assert values == pytest.approx(
        {
            "actor/pg_loss": -0.5,
            "actor/pg_clipfrac": 0.0,
            "actor/pg_clipfrac_lower": 0.0,
            "actor/ppo_kl": 0.0,
            "actor/max_ratio_deviation": 0.0,
            "actor/entropy_loss": 1.5,
            "actor/kl_loss": 0.25,
            "actor/loss": -0.55,
        }
    )


def test_entropy_is_asked_for_only_where_it_has_a_coefficient():
    assert not PolicyLoss(ActorConfig()).needs_entropy
    assert PolicyLoss(ActorConfig(entropy_coeff=0.01)).needs_entropy
    assert not ValueLoss.needs_entropy and not SupervisedLoss.needs_entropy


@pytest.mark.parametrize("bounds", [(None, None), (0.1, 0.3)], ids=["clip_ratio", "low_high"])
def test_clip_ratio_applies_where_low_and_high_are_null(bounds):
    low, high = bounds
    policy_loss = PolicyLoss(ActorConfig(clip_ratio=0.05, clip_ratio_low=low, clip_ratio_high=high))
    inputs = policy_loss._policy_inputs(torch.zeros(5), loss_inputs([0], "token-mean"))
    assert (inputs.clip_low, inputs.clip_high) == ((0.05, 0.05) if low is None else bounds)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_micro_batch_without_response_tokens_has_zero_loss_with_a_graph(name):
    outputs, entropy = torch.zeros(0, requires_grad=True), torch.zeros(0)
    loss, metrics = LOSSES[name](outputs, entropy, loss_inputs([3], "token-mean"))
    loss.backward()
    assert loss.item() == 0 and outputs.grad.shape == (0,)
    assert all(value.item() == 0 for value, _ in metrics.values())
