"""What a failed, endless or senseless score means for the batch: ``reward.on_invalid`` and ``reward.timeout_reward``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_rl.config.data import RewardConfig
from megatron_rl.rewards.messages import Outcome
from megatron_rl.rewards.reward import RewardError, RewardResult, RewardSample
from megatron_rl.types.metrics import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    uid: str
    reason: str


def _failure(outcome: Outcome, uid: str) -> _Failure | None:
    if outcome.kind == "error":
        return _Failure(uid=uid, reason=outcome.detail)
    if outcome.kind == "scored" and (outcome.value is None or not math.isfinite(outcome.value)):
        return _Failure(uid=uid, reason=f"the reward is {outcome.value}, not a finite number")
    return None


def _stop_if_too_many(failures: Sequence[_Failure], num_samples: int, config: RewardConfig) -> None:
    if not failures:
        return
    allowed = 0.0 if config.on_invalid == "error" else config.max_error_frac
    if len(failures) <= allowed * num_samples:
        return
    first = failures[0]
    if config.on_invalid == "error":
        advice = "Fix the function, or set reward.on_invalid=mask or zero."
    else:
        advice = f"That is more than reward.max_error_frac={config.max_error_frac} allows."
    raise RewardError(
        f"reward.function={config.function!r}: {len(failures)} of {num_samples} samples could not be scored. "
        f"{advice} First one, sample {first.uid}: {first.reason.strip()}"
    )


def judge(outcomes: Sequence[Outcome], samples: Sequence[RewardSample], config: RewardConfig) -> RewardResult:
    """Turn outcomes (any order, one per sample) into rewards in the order of the samples.

    A time-out scores ``reward.timeout_reward`` and counts. An exception, None, NaN or an infinity is a failure:
    ``error`` stops, ``mask`` takes the sample out of loss and baseline, ``zero`` scores 0. Masking keeps a failure from
    shifting its group's baseline; that is why zero is not the default.

    Raises:
        RewardError: A failure with ``error``, or more than ``reward.max_error_frac`` of the batch otherwise.
    """
    ordered = sorted(outcomes, key=lambda outcome: outcome.position)
    assert [outcome.position for outcome in ordered] == list(range(len(samples))), "one outcome per sample"
    failures = [_failure(outcome, sample.uid) for outcome, sample in zip(ordered, samples, strict=True)]
    failed = [failure for failure in failures if failure is not None]
    _stop_if_too_many(failed, len(samples), config)
    rewards = [_reward(outcome, failure, config) for outcome, failure in zip(ordered, failures, strict=True)]
    valid = [failure is None or config.on_invalid == "zero" for failure in failures]
    counts = {
        "reward/errors": len(failed),
        "reward/timeouts": sum(outcome.kind == "timeout" for outcome in ordered),
        "reward/masked": valid.count(False),
    }
    metrics = {name: Metric(float(count), "sum") for name, count in counts.items()}
    return RewardResult(rewards=rewards, valid=valid, metrics=metrics)


def _reward(outcome: Outcome, failure: _Failure | None, config: RewardConfig) -> float:
    if outcome.kind == "timeout":
        return config.timeout_reward
    return 0.0 if failure is not None or outcome.value is None else outcome.value
