"""The names that a configuration may give are those that the algorithms answer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import pytest

from megatron_rl.algorithms.advantages import ADVANTAGE_ESTIMATORS
from megatron_rl.algorithms.kl import KL_ESTIMATORS
from megatron_rl.algorithms.policy_loss import POLICY_LOSSES
from megatron_rl.config.algorithm import AdvantageEstimator, KlEstimator
from megatron_rl.config.method_rules import GROUP_ESTIMATORS
from megatron_rl.config.training import PolicyLoss


@pytest.mark.parametrize(
    ("names", "registry"),
    [(AdvantageEstimator, ADVANTAGE_ESTIMATORS), (KlEstimator, KL_ESTIMATORS), (PolicyLoss, POLICY_LOSSES)],
    ids=["algorithm.adv_estimator", "kl_penalty", "actor.policy_loss"],
)
def test_registry_has_the_names_of_the_schema(names: Any, registry: Mapping[str, object]) -> None:
    assert set(get_args(names)) == registry.keys()


def test_group_estimators_are_registered() -> None:
    assert set(GROUP_ESTIMATORS) < ADVANTAGE_ESTIMATORS.keys()
