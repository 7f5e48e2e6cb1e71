"""Losses of packed micro-batches: the sum over any cut equals the whole, in value, gradient and metrics."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.algorithms.loss_weights import loss_weights
from megatron_rl.config.training import ActorConfig, CriticConfig
from megatron_rl.training.loss_closures import LossFunction, PolicyLoss, SupervisedLoss, ValueLoss, segment_ids
from megatron_rl.types.batches import MicroBatch, PackedTokens
from megatron_rl.types.masks import to_predicting_position

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


def pack(rows: list[int], mode: str) -> MicroBatch:
    mask = make_mask()

    def packed(x_BS: torch.Tensor) -> torch.Tensor:
        return torch.cat([to_predicting_position(x_BS)[row, : LENGTHS[row]] for row in rows])

    bounds = torch.tensor([0, *[LENGTHS[row] for row in rows]]).cumsum(0).int()
    fields = make_fields()
    return MicroBatch(
        packed=PackedTokens(
            tokens_T=torch.zeros(int(bounds[-1]), dtype=torch.int64),
            targets_T=torch.zeros(int(bounds[-1]), dtype=torch.int64),
            predicts_T=packed(mask),
            cu_seqlens=bounds,
            lengths=tuple(LENGTHS[row] for row in rows),
            rows=tuple(rows),
        ),
        loss_weights_T=packed(loss_weights(mask, mode, 6)),
        num_response_tokens=int(mask.sum()),
        **{f"{name}_T": packed(value) for name, value in fields.items()},
    )


def run(loss_function: LossFunction, cut: list[list[int]], mode: str):
    """Total loss, gradients of outputs and entropies ``[2, B, S]``, and merged metrics over the micro-batches."""
    generator = torch.Generator().manual_seed(1)
    leaf = (torch.randn(2, SAMPLES, WIDTH, generator=generator) * 0.3).requires_grad_()
    total, metrics = torch.zeros(()), {}
    for rows in cut:
        outputs, entropy = (torch.cat([to_predicting_position(x)[row, : LENGTHS[row]] for row in rows]) for x in leaf)
        loss, partial = loss_function(outputs, entropy if loss_function.needs_entropy else None, pack(rows, mode))
        total = total + loss
        for name, (value, reduction) in partial.items():
            assert not value.requires_grad
            old = metrics.get(name, torch.zeros(()))
            metrics[name] = old + value if reduction == "sum" else torch.maximum(old, value)
    total.backward()
    return total.detach(), leaf.grad, metrics


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


def test_policy_loss_matches_hand_computed():
    """One token of two: ratio 1, A = 2, weight 0.5, importance 0.5, entropy 3, KL (k1) 1."""
    config = ActorConfig(entropy_coeff=0.1, use_kl_loss=True, kl_loss_coef=0.2, kl_loss_type="k1")
    two = lambda value: torch.tensor([value, torch.nan])  # noqa: E731
    micro = MicroBatch(
        packed=PackedTokens(
            tokens_T=torch.tensor([5, 6]),
            targets_T=torch.tensor([6, 0]),
            predicts_T=torch.tensor([True, False]),
            cu_seqlens=torch.tensor([0, 2], dtype=torch.int32),
            lengths=(2,),
            rows=(0,),
        ),
        loss_weights_T=two(0.5),
        old_logprobs_T=two(-1.0),
        ref_logprobs_T=two(-2.0),
        values_T=two(0.0),
        advantages_T=two(2.0),
        returns_T=two(0.0),
        importance_weights_T=two(0.5),
        num_response_tokens=4,
    )
    loss, metrics = PolicyLoss(config)(two(-1.0), two(3.0), micro)
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
    inputs = PolicyLoss(ActorConfig(clip_ratio=0.05, clip_ratio_low=low, clip_ratio_high=high))._inputs(
        torch.zeros(LENGTHS[0]), pack([0], "token-mean")
    )
    assert (inputs.clip_low, inputs.clip_high) == ((0.05, 0.05) if low is None else bounds)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_micro_batch_without_response_tokens_has_zero_loss_with_a_graph(name):
    outputs = torch.full((LENGTHS[3],), torch.nan, requires_grad=True)
    entropy = torch.full((LENGTHS[3],), torch.nan)
    loss, metrics = LOSSES[name](outputs, entropy, pack([3], "token-mean"))
    loss.backward()
    assert loss.item() == 0 and torch.equal(outputs.grad, torch.zeros(LENGTHS[3]))
    assert all(value.item() == 0 for value, _ in metrics.values())


def test_segment_ids_matches_hand_computed():
    packed = pack([6, 3, 1], "token-mean").packed
    assert segment_ids(packed).tolist() == [0] * 2 + [1] * 3 + [2] * 5
