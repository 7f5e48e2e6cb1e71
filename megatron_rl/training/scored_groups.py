"""Prompts with their answers and rewards: joining gen batches, taking some groups.

Shape suffixes: B samples, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_rl.algorithms.group_filter import differing_groups
from megatron_rl.algorithms.group_stats import group_stats
from megatron_rl.config.algorithm import GroupMetric
from megatron_rl.training.scoring import ScoredRollouts
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.metrics import Metric, Metrics, spread
from megatron_rl.types.prompts import PromptBatch
from megatron_rl.types.rollout_rows import join_rollouts, rows_of_groups, take_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRewards:
    """Rewards of B samples, without what they were given for."""

    rewards_B: Tensor
    """f32, before any KL term, 0 where invalid."""
    valid_B: Tensor
    """bool, False for samples the reward policy masks out."""
    counted_B: Tensor
    """bool, samples that take part in baselines: valid, with a response token."""
    group_ids_B: Tensor
    """i64, from 0 on."""

    @classmethod
    def joined(cls, parts: Sequence[GroupRewards]) -> GroupRewards:
        """Parts below each other; group ids go on counting."""
        sizes = [int(part.group_ids_B.max()) + 1 for part in parts]
        return cls(
            rewards_B=torch.cat([part.rewards_B for part in parts]),
            valid_B=torch.cat([part.valid_B for part in parts]),
            counted_B=torch.cat([part.counted_B for part in parts]),
            group_ids_B=torch.cat([part.group_ids_B + sum(sizes[:i]) for i, part in enumerate(parts)]),
        )

    def differing(self, metric: GroupMetric) -> list[bool]:
        """Whether the samples of each group differ in what the filter looks at."""
        return [bool(d) for d in differing_groups(metric, self.rewards_B, self.group_ids_B, self.counted_B)]

    def metrics(self) -> Metrics:
        """``reward/...`` over valid samples and the share of groups without signal."""
        stats = group_stats(self.rewards_B, self.group_ids_B, self.counted_B)
        valid = self.rewards_B[self.valid_B]
        metrics = {"group/frac_zero_std": Metric(stats.zero_variance_frac), **spread("reward", valid)}
        if valid.numel():
            metrics["reward/std"] = Metric(float(valid.std(correction=0)))
        return metrics


@dataclass(frozen=True)
class ScoredGroups:
    """G groups; row ``b`` answers ``prompts.prompts[rollouts.group_ids_B[b]]``."""

    prompts: PromptBatch
    rollouts: RolloutBatch
    scored: ScoredRollouts

    @property
    def rewards(self) -> GroupRewards:
        """The rewards alone."""
        return GroupRewards(
            rewards_B=self.scored.rewards_B,
            valid_B=self.scored.valid_B,
            counted_B=self.scored.valid_B & (self.rollouts.response_lengths_B > 0),
            group_ids_B=self.rollouts.group_ids_B,
        )

    def take(self, groups: Sequence[int]) -> ScoredGroups:
        """Some groups, ids ascending, numbered anew; all of them are the same object."""
        if len(groups) == len(self.prompts.prompts):
            return self
        rows_B = rows_of_groups(self.rollouts, groups)
        scored = ScoredRollouts(
            self.scored.rewards_B[rows_B],
            self.scored.valid_B[rows_B],
            tuple(self.scored.responses[row] for row in rows_B.nonzero().flatten().tolist()),
        )
        prompts = tuple(self.prompts.prompts[group] for group in groups)
        return ScoredGroups(PromptBatch(prompts=prompts, epoch=self.prompts.epoch), take_groups(self.rollouts, groups), scored)

    def followed_by(self, other: ScoredGroups) -> ScoredGroups:
        """These groups, then those of another gen batch, whose epoch counts."""
        scored = ScoredRollouts(
            torch.cat([self.scored.rewards_B, other.scored.rewards_B]),
            torch.cat([self.scored.valid_B, other.scored.valid_B]),
            self.scored.responses + other.scored.responses,
        )
        prompts = PromptBatch(prompts=self.prompts.prompts + other.prompts.prompts, epoch=other.prompts.epoch)
        return ScoredGroups(prompts, join_rollouts([self.rollouts, other.rollouts]), scored)
