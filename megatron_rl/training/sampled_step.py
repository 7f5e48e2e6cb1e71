"""Sampling one step: generate and score until there are enough groups to train on.

Shape suffixes: B samples, G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_rl.algorithms.group_filter import choose_groups, differing_groups
from megatron_rl.algorithms.group_stats import group_stats
from megatron_rl.config.algorithm import FilterGroupsConfig
from megatron_rl.rollout.generator import RolloutGenerator
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.training.scoring import RewardScorer, ScoredRollouts
from megatron_rl.training.step_phases import StepPhases
from megatron_rl.types.batches import PromptBatch, RolloutBatch
from megatron_rl.types.metrics import Metric, Metrics, merge
from megatron_rl.types.rollout_rows import join_rollouts, rows_of_groups, take_groups

_NEWS_EVERY = 10
"""Gen batches of one step between two messages that sampling goes on."""


class SamplingInterruptedError(Exception):
    """A signal came before the step had enough groups; raised on every rank, the weights being as they were."""


@dataclass(frozen=True)
class SampledGroups:
    """Prompts with their answers and rewards; row ``b`` answers ``prompts.prompts[rollouts.group_ids_B[b]]``."""

    prompts: PromptBatch
    rollouts: RolloutBatch
    scored: ScoredRollouts

    @property
    def counted_B(self) -> Tensor:
        """bool, samples that take part in baselines: valid, with a response token."""
        return self.scored.valid_B & (self.rollouts.response_lengths_B > 0)

    def differing(self, filter_groups: FilterGroupsConfig) -> list[bool]:
        """Whether the answers of each group differ in what the filter looks at."""
        rewards_B, group_ids_B = self.scored.rewards_B, self.rollouts.group_ids_B
        return [bool(d) for d in differing_groups(filter_groups.metric, rewards_B, group_ids_B, self.counted_B)]

    def take(self, groups: Sequence[int]) -> SampledGroups:
        """Some groups, numbered anew."""
        rows_B = rows_of_groups(self.rollouts, groups)
        scored = ScoredRollouts(
            self.scored.rewards_B[rows_B],
            self.scored.valid_B[rows_B],
            tuple(self.scored.responses[row] for row in rows_B.nonzero().flatten().tolist()),
        )
        prompts = tuple(self.prompts.prompts[group] for group in groups)
        return SampledGroups(PromptBatch(prompts=prompts, epoch=self.prompts.epoch), take_groups(self.rollouts, groups), scored)

    @classmethod
    def joined(cls, parts: Sequence[SampledGroups]) -> SampledGroups:
        """Gen batches of one step as one, in the order they were sampled; the epoch is that of the last."""
        if len(parts) == 1:
            return parts[0]
        scored = ScoredRollouts(
            torch.cat([part.scored.rewards_B for part in parts]),
            torch.cat([part.scored.valid_B for part in parts]),
            tuple(text for part in parts for text in part.scored.responses),
        )
        prompts = tuple(prompt for part in parts for prompt in part.prompts.prompts)
        return cls(
            PromptBatch(prompts=prompts, epoch=parts[-1].prompts.epoch),
            join_rollouts([part.rollouts for part in parts]),
            scored,
        )


@dataclass(frozen=True)
class SampledStep:
    """All that a step sampled, and what of it the update sees."""

    all: SampledGroups
    trained: SampledGroups
    trained_B: Tensor
    """bool, samples of ``all`` that are in ``trained``."""


class StepSampler:
    """Takes prompts, gives scored groups: one gen batch, or with ``algorithm.filter_groups`` as many as it takes."""

    def __init__(
        self,
        *,
        generator: RolloutGenerator,
        sampling: SamplingSettings,
        scorer: RewardScorer,
        filter_groups: FilterGroupsConfig,
        num_groups: int,
        phases: StepPhases,
        interrupted: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        """Train on ``num_groups`` groups a step (``data.train_batch_size``).

        ``interrupted`` is asked on all ranks before each further gen batch; ``say`` is told when sampling takes long.
        """
        self._generator = generator
        self._sampling = sampling
        self._scorer = scorer
        self._filter = filter_groups
        self._num_groups = num_groups
        self._phases = phases
        self._interrupted = interrupted
        self._say = say

    def sample(self, step: int, next_prompts: Callable[[], PromptBatch], policy_version: int) -> tuple[SampledStep, Metrics]:
        """Sample and score; the same on every rank, so all agree on the number of gen batches.

        Args:
            step: counts from 1; decides the samples, with each prompt's index in the step.
            next_prompts: gives the prompts of the next gen batch.
            policy_version: the weights to sample from.

        Raises SamplingInterruptedError where a signal came and the gen batches so far are not enough.
        Collectives: those of generator and scorer, all ranks.
        """
        batches: list[SampledGroups] = []
        metrics: list[Metrics] = []
        differs_G: list[bool] = []
        while not self._enough(batches, differs_G):
            if batches and self._interrupted():
                raise SamplingInterruptedError
            batch, found = self._gen_batch(step, next_prompts(), policy_version, first_index=len(differs_G))
            batches.append(batch)
            metrics.append(found)
            differs_G += batch.differing(self._filter)
            self._tell(step, len(batches), sum(differs_G))
        return self._choose(batches, differs_G, metrics)

    def _enough(self, batches: Sequence[SampledGroups], differs_G: Sequence[bool]) -> bool:
        if not self._filter.enable:
            return len(batches) == 1
        limit = self._filter.max_num_gen_batches
        return sum(differs_G) >= self._num_groups or 0 < limit <= len(batches)

    def _gen_batch(
        self, step: int, prompts: PromptBatch, policy_version: int, first_index: int
    ) -> tuple[SampledGroups, Metrics]:
        with self._phases("gen"):
            rollouts, rollout_metrics = self._generator.generate(
                prompts, self._sampling, step=step, policy_version=policy_version, first_index=first_index
            )
        with self._phases("reward"):
            scored, reward_metrics = self._scorer.score(prompts, rollouts)
        return SampledGroups(prompts, rollouts, scored), {**rollout_metrics, **reward_metrics}

    def _tell(self, step: int, num_batches: int, num_differing: int) -> None:
        if num_batches % _NEWS_EVERY == 0:
            self._say(
                f"step {step}: {num_batches} gen batches so far, {num_differing} of {self._num_groups} groups differ in "
                f"{self._filter.metric}; algorithm.filter_groups.max_num_gen_batches={self._filter.max_num_gen_batches} "
                f"{'ends that' if self._filter.max_num_gen_batches else 'never ends that'}"
            )

    def _choose(
        self, batches: Sequence[SampledGroups], differs_G: Sequence[bool], metrics: Sequence[Metrics]
    ) -> tuple[SampledStep, Metrics]:
        sampled = SampledGroups.joined(batches)
        found = merge([*metrics, _reward_metrics(sampled)])
        if not self._filter.enable:
            return SampledStep(sampled, sampled, torch.ones_like(sampled.scored.valid_B)), found
        groups = choose_groups(differs_G, self._num_groups)
        found |= {
            "train/num_gen_batches": Metric(float(len(batches)), "last"),
            "group/frac_kept": Metric(len(groups) / len(differs_G)),
            "group/num_filled": Metric(float(sum(not differs_G[group] for group in groups)), "sum"),
        }
        return SampledStep(sampled, sampled.take(groups), rows_of_groups(sampled.rollouts, groups)), found


def _reward_metrics(sampled: SampledGroups) -> Metrics:
    """Of all that was sampled, whether or not it is trained on: a filter that keeps mixed groups would bend the curve."""
    scored = sampled.scored
    stats = group_stats(scored.rewards_B, sampled.rollouts.group_ids_B, sampled.counted_B)
    metrics = {"group/frac_zero_std": Metric(stats.zero_variance_frac)}
    counted = scored.rewards_B[scored.valid_B]
    if counted.numel():
        metrics |= {
            "reward/mean": Metric(float(counted.mean()), weight=float(counted.numel())),
            "reward/std": Metric(float(counted.std(correction=0))),
            "reward/max": Metric(float(counted.max()), "max"),
            "reward/min": Metric(float(counted.min()), "min"),
        }
    return metrics
