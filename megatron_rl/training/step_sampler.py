"""Sampling one step: generate and score until there are enough groups to train on.

Shape suffixes: B samples, G groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from megatron_rl.algorithms.group_filter import candidate_groups, choose_groups
from megatron_rl.config.algorithm import FilterGroupsConfig
from megatron_rl.rollout.generator import RolloutGenerator
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.training.scored_groups import GroupRewards, ScoredGroups
from megatron_rl.training.scoring import RewardScorer
from megatron_rl.training.step_phases import StepPhases
from megatron_rl.types.metrics import Metric, Metrics, merge
from megatron_rl.types.prompts import PromptBatch
from megatron_rl.types.rollout_rows import rows_of_groups

_NEWS_EVERY = 10
"""Gen batches of one step between two messages that sampling goes on."""


class SamplingInterruptedError(Exception):
    """A signal came before the step had enough groups; raised on every rank, the weights being as they were."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens of all that a step sampled, padding not counted."""

    prompt: int
    response: int


@dataclass(frozen=True)
class SampledStep:
    """What a step trains on, and what of the rest is kept to be read."""

    kept: ScoredGroups
    """Without dynamic sampling all; with it at most ``data.train_batch_size`` groups that differ and as many that do not."""
    trained: ScoredGroups
    trained_B: Tensor
    """bool, samples of ``kept`` that are in ``trained``."""
    tokens: SampledTokens


@dataclass
class _Progress:
    """A step under way: all of it in numbers, and the groups that it may still train on."""

    num_wanted: int
    num_batches: int = 0
    num_groups: int = 0
    num_prompt_tokens: int = 0
    num_response_tokens: int = 0
    metrics: list[Metrics] = field(default_factory=list)
    rewards: list[GroupRewards] = field(default_factory=list)
    kept: ScoredGroups | None = None
    differs_G: list[bool] = field(default_factory=list)
    """Of ``kept``."""

    def add(self, batch: ScoredGroups, differs_G: list[bool], metrics: Metrics) -> None:
        """Count a gen batch, and let go of the groups that nothing can ask for any more: host memory is not endless."""
        self.num_batches += 1
        self.num_groups += len(differs_G)
        self.num_prompt_tokens += int(batch.rollouts.prompt_lengths_B.sum())
        self.num_response_tokens += int(batch.rollouts.response_lengths_B.sum())
        self.metrics.append(metrics)
        self.rewards.append(batch.rewards)
        joined = batch if self.kept is None else self.kept.followed_by(batch)
        differs_G = self.differs_G + differs_G
        candidates = candidate_groups(differs_G, self.num_wanted)
        self.kept, self.differs_G = joined.take(candidates), [differs_G[group] for group in candidates]

    @property
    def num_differing(self) -> int:
        """Groups that differ, as far as they are wanted."""
        return sum(self.differs_G)


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

        Returns the step, and metrics of all that was sampled: a filter that keeps mixed groups would bend the reward's curve.
        Raises SamplingInterruptedError where a signal came and the gen batches so far are not enough.
        Collectives: those of generator and scorer, all ranks.
        """
        progress = _Progress(self._num_groups)
        while not self._enough(progress):
            if progress.num_batches and self._interrupted():
                raise SamplingInterruptedError
            batch, metrics = self._gen_batch(step, next_prompts(), policy_version, first_index=progress.num_groups)
            progress.add(batch, batch.rewards.differing(self._filter.metric), metrics)
            self._tell(step, progress)
        return self._finish(progress)

    def _enough(self, progress: _Progress) -> bool:
        if not self._filter.enable:
            return progress.num_batches == 1
        limit = self._filter.max_num_gen_batches
        return progress.num_differing >= self._num_groups or 0 < limit <= progress.num_batches

    def _gen_batch(
        self, step: int, prompts: PromptBatch, policy_version: int, first_index: int
    ) -> tuple[ScoredGroups, Metrics]:
        with self._phases("gen"):
            rollouts, rollout_metrics = self._generator.generate(
                prompts, self._sampling, step=step, policy_version=policy_version, first_index=first_index
            )
        with self._phases("reward"):
            scored, reward_metrics = self._scorer.score(prompts, rollouts)
        return ScoredGroups(prompts, rollouts, scored), {**rollout_metrics, **reward_metrics}

    def _tell(self, step: int, progress: _Progress) -> None:
        if progress.num_batches % _NEWS_EVERY == 0:
            limit = self._filter.max_num_gen_batches
            self._say(
                f"step {step}: {progress.num_batches} gen batches so far, {progress.num_differing} of {self._num_groups} "
                f"groups differ in {self._filter.metric}; algorithm.filter_groups.max_num_gen_batches={limit} "
                f"{'ends that' if limit else 'never ends that'}"
            )

    def _finish(self, progress: _Progress) -> tuple[SampledStep, Metrics]:
        assert progress.kept is not None
        metrics = merge([*progress.metrics, GroupRewards.joined(progress.rewards).metrics()])
        groups = choose_groups(progress.differs_G, self._num_groups)
        if self._filter.enable:
            metrics |= {
                "train/num_gen_batches": Metric(float(progress.num_batches), "last"),
                "group/frac_kept": Metric(len(groups) / progress.num_groups),
                "group/num_filled": Metric(float(self._num_groups - progress.num_differing), "sum"),
            }
        sampled = SampledStep(
            kept=progress.kept,
            trained=progress.kept.take(groups),
            trained_B=rows_of_groups(progress.kept.rollouts, groups),
            tokens=SampledTokens(progress.num_prompt_tokens, progress.num_response_tokens),
        )
        return sampled, metrics
