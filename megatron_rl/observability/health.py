"""Signs of an unhealthy run, with advice: one warning when a sign persists, not one a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megatron_rl.types.metrics import Metrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HealthRule:
    """A metric that should stay below a limit."""

    metric: str
    limit: float
    """At or above it the step counts as unhealthy."""
    num_steps: int
    """Unhealthy steps in a row before the warning."""
    advice: str
    """What it means and what to do."""


RULES: tuple[HealthRule, ...] = (
    HealthRule(
        "response_length/clip_ratio",
        0.9,
        3,
        "most responses are cut before they end, so their reward says little: raise data.max_response_length, "
        "shorten the task, or check that the model knows the end-of-sequence token",
    ),
    HealthRule(
        "group/frac_zero_std",
        0.9,
        3,
        "in most groups all samples earn the same reward, which gives a group baseline no gradient: choose easier or "
        "harder prompts, raise rollout.n, sample on until enough groups differ (algorithm.filter_groups.enable=true), or "
        "check the reward function",
    ),
    HealthRule(
        "group/num_filled",
        1,
        3,
        "the step's last gen batch came before enough groups differed, so groups that do not fill the batch up: raise "
        "algorithm.filter_groups.max_num_gen_batches or data.gen_batch_size, or choose easier or harder prompts",
    ),
    HealthRule(
        "perf/mfu_actor",
        1.0,
        1,
        "more FLOP/s than the device has: its peak, the token counts or the timers are wrong",
    ),
)


def mismatch_rule(limit: float) -> HealthRule:
    """Rule for ``rollout.mismatch_warn_threshold``, nats."""
    return HealthRule(
        "rollout_corr/logprob_diff_mean",
        limit,
        1,
        "trainer and engine disagree on the sampled tokens: check that every weight sync ran, that rollout.top_p and "
        "rollout.top_k are off, and the engine's precision",
    )


class HealthMonitor:
    """Watches the metrics of each step."""

    def __init__(self, warn: Callable[[str], None] = logger.warning, rules: Sequence[HealthRule] = RULES) -> None:
        """Send each warning to ``warn``."""
        self._warn = warn
        self._streaks = dict.fromkeys(rules, 0)

    def observe(self, metrics: Metrics) -> None:
        """Count unhealthy steps; warn when a rule's streak is reached, and again only after it was broken."""
        for rule in self._streaks:
            if rule.metric not in metrics:
                continue
            value = metrics[rule.metric].value
            self._streaks[rule] = self._streaks[rule] + 1 if value >= rule.limit else 0
            if self._streaks[rule] == rule.num_steps:
                self._warn(f"{rule.metric} is {value:.3g} ({rule.num_steps} steps at or above {rule.limit:g}): {rule.advice}")
