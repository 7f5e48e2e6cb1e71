"""Trainer-rollout mismatch."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.algorithms.importance import importance_weights, mismatch_metrics, weight_metrics
from megatron_rl.config.rollout import RolloutCorrectionConfig
from megatron_rl.types.metrics import to_floats
from tests.algorithms.golden import LOGPROBS, LOSS_MASK, OLD_LOGPROBS

TOKEN = RolloutCorrectionConfig(mode="token", threshold=1.5)
SEQUENCE = RolloutCorrectionConfig(mode="sequence", threshold=1.5)
NONE = RolloutCorrectionConfig(mode="none")

# In the golden case the engine's log-probs are LOGPROBS and the trainer's OLD_LOGPROBS.


def test_token_weights_match_golden_values():
    weights, _ = importance_weights(OLD_LOGPROBS, LOGPROBS, LOSS_MASK, TOKEN)
    torch.testing.assert_close(weights, torch.tensor([[0.818731, 1, 0.496585], [1.5, 0.818731, 0]]), atol=1e-6, rtol=0)


def test_sequence_weights_match_golden_values():
    weights, _ = importance_weights(OLD_LOGPROBS, LOGPROBS, LOSS_MASK, SEQUENCE)
    expected = torch.tensor([[0.40657], [1.349859]]) * LOSS_MASK
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)


def test_no_correction_weighs_one():
    weights, metrics = importance_weights(OLD_LOGPROBS, LOGPROBS, LOSS_MASK, NONE)
    assert torch.equal(weights, LOSS_MASK.float())
    assert metrics == mismatch_metrics(OLD_LOGPROBS, LOGPROBS, LOSS_MASK)


def test_mismatch_metrics_match_golden_values():
    metrics = mismatch_metrics(OLD_LOGPROBS, LOGPROBS, LOSS_MASK)
    expected = {
        "kl": 0.12,
        "k3_kl": 0.076554,
        "training_ppl": 2.419285,
        "rollout_ppl": 2.310017,
        "chi2_token": 0.061104,
        "chi2_seq": -0.006291,
        "logprob_diff_mean": 0.32,
        "logprob_diff_max": 0.7,
        "ratio_p01": 0.496585,
        "ratio_p99": 1.648721,
    }
    for name, value in expected.items():
        assert metrics[f"rollout_corr/{name}"].value == pytest.approx(value, abs=1e-6), name


def test_mismatch_metrics_of_equal_policies_are_zero():
    metrics = to_floats(mismatch_metrics(LOGPROBS, LOGPROBS, LOSS_MASK))
    for name in ("kl", "k3_kl", "chi2_token", "chi2_seq", "logprob_diff_mean", "logprob_diff_max", "probs_diff_max"):
        assert metrics[f"rollout_corr/{name}"] == 0
    assert metrics["rollout_corr/probs_pearson"] == pytest.approx(1.0) and metrics["rollout_corr/ratio_max"] == 1.0


@pytest.mark.parametrize("config", [NONE, TOKEN, SEQUENCE], ids=["none", "token", "sequence"])
def test_garbage_outside_the_mask_changes_nothing(config):
    dirty = torch.where(LOSS_MASK, OLD_LOGPROBS, torch.nan), torch.where(LOSS_MASK, LOGPROBS, torch.inf)
    clean_weights, clean_metrics = importance_weights(OLD_LOGPROBS, LOGPROBS, LOSS_MASK, config)
    weights, metrics = importance_weights(*dirty, LOSS_MASK, config)
    assert torch.equal(weights, clean_weights) and metrics == clean_metrics


def test_metrics_of_an_all_masked_batch_are_finite():
    empty = torch.zeros_like(LOSS_MASK)
    metrics = mismatch_metrics(OLD_LOGPROBS, LOGPROBS, empty) | weight_metrics(torch.zeros(2, 3), empty, 2.0)
    assert all(math.isfinite(metric.value) for metric in metrics.values())


def test_weight_metrics_match_hand_computed():
    weights = torch.tensor([[0.5, 1.5, 1.0, 9.0]])
    metrics = weight_metrics(weights, torch.tensor([[True, True, True, False]]), threshold=1.5)
    values = {name.removeprefix("rollout_corr/rollout_is_"): metric.value for name, metric in metrics.items()}
    assert values == pytest.approx(
        {"mean": 1.0, "std": 0.5, "max": 1.5, "eff_sample_size": 1 / (3.5 / 3), "ratio_fraction_high": 1 / 3}
    )
