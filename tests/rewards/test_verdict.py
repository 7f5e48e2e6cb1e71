import math

import pytest

from megatron_rl.config.data import RewardConfig
from megatron_rl.rewards.messages import Outcome
from megatron_rl.rewards.reward import RewardError, RewardSample
from megatron_rl.rewards.verdict import judge


def _samples(num: int) -> list[RewardSample]:
    return [RewardSample(uid=f"t:{i}", prompt="", response="", row={}) for i in range(num)]


def _scored(*values: float | None) -> list[Outcome]:
    return [Outcome(position=i, kind="scored", value=value) for i, value in enumerate(values)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None], ids=["nan", "inf", "minus_inf", "none"])
@pytest.mark.parametrize(("policy", "valid"), [("mask", False), ("zero", True)])
def test_judge_keeps_the_siblings_of_an_invalid_reward(policy: str, valid: bool, bad: float | None) -> None:
    config = RewardConfig(on_invalid=policy)  # type: ignore[arg-type]
    result = judge(_scored(1.0, 0.0, bad, 1.0), _samples(4), config)
    assert result.rewards == [1, 0, 0, 1]
    assert result.valid == [True, True, valid, True]
    assert result.metrics["reward/errors"].value == 1
    assert result.metrics["reward/masked"].value == (0 if valid else 1)


def test_judge_rejects_invalid_rewards_by_default() -> None:
    with pytest.raises(RewardError, match=r"1 of 2 samples.*reward\.on_invalid=mask.*sample t:1: the reward is nan"):
        judge(_scored(1.0, math.nan), _samples(2), RewardConfig())


@pytest.mark.parametrize(("allowed", "stops"), [(0.25, True), (0.5, False)])
def test_judge_stops_above_the_tolerated_share(allowed: float, stops: bool) -> None:
    config = RewardConfig(on_invalid="mask", max_error_frac=allowed)
    outcomes = _scored(1.0, math.nan, math.nan, 1.0)
    if stops:
        with pytest.raises(RewardError, match=r"reward\.max_error_frac=0\.25"):
            judge(outcomes, _samples(4), config)
    else:
        assert judge(outcomes, _samples(4), config).valid == [True, False, False, True]


def test_judge_invariant_to_order() -> None:
    outcomes = [*_scored(1.0, 2.0), Outcome(position=2, kind="timeout")]
    config = RewardConfig(timeout_reward=-0.5)
    forward, backward = judge(outcomes, _samples(3), config), judge(outcomes[::-1], _samples(3), config)
    assert forward == backward
    assert forward.rewards == [1, 2, -0.5] and forward.metrics["reward/timeouts"].value == 1


def test_judge_accepts_no_samples() -> None:
    assert judge([], [], RewardConfig()).rewards == []
