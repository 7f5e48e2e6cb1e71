"""Trainer against engine log-probs."""

from __future__ import annotations

import math

import pytest
import torch

from megatron_rl.rollout.mismatch import mismatch_metrics, mismatch_warning
from megatron_rl.types.metrics import to_floats

_TRAINER = torch.tensor([[-1.2, -0.5, -0.9], [-1.5, -0.3, -0.7]])
_ROLLOUT = torch.tensor([[-1.0, -0.5, -0.2], [-2.0, -0.1, -0.7]])
_MASK = torch.tensor([[True, True, True], [True, True, False]])


def test_mismatch_metrics_matches_hand_computed() -> None:
    found = to_floats(mismatch_metrics(_TRAINER, _ROLLOUT, _MASK))
    d = [-0.2, 0.0, -0.7, 0.5, -0.2]
    assert found["mismatch/logprob_abs_diff_mean"] == pytest.approx(1.6 / 5, abs=1e-6)
    assert found["mismatch/logprob_abs_diff_max"] == pytest.approx(0.7, abs=1e-6)
    assert found["mismatch/kl_k1"] == pytest.approx(0.12, abs=1e-6)
    assert found["mismatch/kl_k3"] == pytest.approx(0.076554, abs=1e-6)
    assert found["mismatch/ratio_p50"] == pytest.approx(math.exp(sorted(d)[2]), abs=1e-6)


def test_mismatch_metrics_pearson_matches_reference() -> None:
    found = to_floats(mismatch_metrics(_TRAINER, _ROLLOUT, _MASK))
    pairs = torch.stack([_TRAINER[_MASK].exp(), _ROLLOUT[_MASK].exp()]).double()
    assert found["mismatch/probs_pearson"] == pytest.approx(float(torch.corrcoef(pairs)[0, 1]), abs=1e-6)


def test_mismatch_metrics_of_equal_logprobs_is_zero() -> None:
    found = to_floats(mismatch_metrics(_TRAINER, _TRAINER, _MASK))
    assert found["mismatch/logprob_abs_diff_max"] == found["mismatch/kl_k1"] == found["mismatch/kl_k3"] == 0.0
    assert found["mismatch/ratio_p1"] == found["mismatch/ratio_p99"] == 1.0
    assert found["mismatch/probs_pearson"] == pytest.approx(1.0)


def test_mismatch_metrics_invariant_to_padding_content() -> None:
    poisoned = torch.where(_MASK, _TRAINER, torch.nan), torch.where(_MASK, _ROLLOUT, torch.tensor(1e4))
    assert mismatch_metrics(*poisoned, _MASK) == mismatch_metrics(_TRAINER, _ROLLOUT, _MASK)


@pytest.mark.parametrize("constant", [True, False], ids=["equal_constants", "one_varies"])
def test_mismatch_metrics_stays_finite_without_variance(constant: bool) -> None:
    rollout = torch.full((1, 3), -0.5)
    trainer = rollout if constant else torch.tensor([[-0.5, -0.6, -0.7]])
    found = to_floats(mismatch_metrics(trainer, rollout, torch.ones(1, 3, dtype=torch.bool)))
    assert found["mismatch/probs_pearson"] == float(constant)


def test_mismatch_metrics_of_an_empty_mask_is_empty() -> None:
    assert mismatch_metrics(_TRAINER, _ROLLOUT, torch.zeros_like(_MASK)) == {}


@pytest.mark.parametrize(
    ("trainer", "threshold", "warns"),
    [
        pytest.param(_TRAINER, 0.05, True, id="above"),
        pytest.param(_TRAINER, 0.4, False, id="below"),
        pytest.param(torch.full((2, 3), torch.nan), 0.05, True, id="nan"),
    ],
)
def test_mismatch_warning_matches_threshold(trainer: torch.Tensor, threshold: float, warns: bool) -> None:
    warning = mismatch_warning(mismatch_metrics(trainer, _ROLLOUT, _MASK), threshold)
    assert (warning is not None) == warns
    assert warning is None or f"mismatch_warn_threshold={threshold:g}" in warning
