"""One RL step. PPO, GRPO and their relatives run these same lines with other estimators and null roles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from megatron_rl.training.experience import ExperienceBuilder
from megatron_rl.training.roles import Actor, Critic
from megatron_rl.training.scoring import ScoredRollouts
from megatron_rl.training.step_phases import StepPhases
from megatron_rl.training.step_sampler import SampledTokens, StepSampler
from megatron_rl.training.weight_sync import WeightSync
from megatron_rl.types.batches import Experience, RolloutBatch
from megatron_rl.types.metrics import Metrics, merge
from megatron_rl.types.prompts import PromptBatch


@dataclass(frozen=True)
class StepResult:
    """What one step leaves behind: the samples it trained on, and with dynamic sampling some that it did not."""

    metrics: Metrics
    prompts: PromptBatch
    rollouts: RolloutBatch
    scored: ScoredRollouts
    trained_B: Tensor
    """bool, samples that the update saw; all of them unless ``algorithm.filter_groups`` is on."""
    sampled_tokens: SampledTokens
    """Of all that was sampled, also where it is not kept here."""


class PpoTrainer:
    """Holds the roles and takes steps; mentions neither rank nor layout."""

    def __init__(
        self,
        *,
        sampler: StepSampler,
        weight_sync: WeightSync,
        builder: ExperienceBuilder,
        actor: Actor,
        critic: Critic,
        critic_warmup_steps: int,
        seed: int,
        phases: StepPhases,
    ) -> None:
        """Wire the parts; the engine holds no weights until the first sync."""
        self._sampler = sampler
        self.weight_sync = weight_sync
        self._builder = builder
        self._actor = actor
        self._critic = critic
        self._critic_warmup_steps = critic_warmup_steps
        self._seed = seed
        self._phases = phases

    def step(self, step: int, next_prompts: Callable[[], PromptBatch]) -> StepResult:
        """Sample, judge, improve, and hand the new weights to the engine.

        Args:
            step: counts from 1.
            next_prompts: gives the prompts of the next gen batch.
        """
        sampled, sampling_metrics = self._sampler.sample(step, next_prompts, self.weight_sync.version)
        experience, experience_metrics = self._builder.build(sampled.trained.rollouts, sampled.trained.scored)
        update_metrics = self._update(step, experience)
        with self._phases("update_weights"):
            sync_metrics = self.weight_sync.push(version=step)
        metrics = merge([sampling_metrics, experience_metrics, update_metrics, sync_metrics])
        kept = sampled.kept
        return StepResult(metrics, kept.prompts, kept.rollouts, kept.scored, sampled.trained_B, sampled.tokens)

    def _update(self, step: int, experience: Experience) -> Metrics:
        seed = self._seed + 1_000_003 * step
        with self._phases("update_critic"):
            critic_metrics = self._critic.update(experience, seed)
        if step <= self._critic_warmup_steps:
            return critic_metrics
        with self._phases("update_actor"):
            self.weight_sync.invalidate()
            return {**critic_metrics, **self._actor.update(experience, seed)}
