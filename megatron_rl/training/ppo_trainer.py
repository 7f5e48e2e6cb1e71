"""One RL step. PPO, GRPO and their relatives run these same lines with other estimators and null roles."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_rl.rollout.generator import RolloutGenerator
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.training.experience import ExperienceBuilder
from megatron_rl.training.roles import Actor, Critic
from megatron_rl.training.scoring import RewardScorer, ScoredRollouts
from megatron_rl.training.step_phases import StepPhases
from megatron_rl.training.weight_sync import WeightSync
from megatron_rl.types.batches import Experience, PromptBatch, RolloutBatch
from megatron_rl.types.metrics import Metrics, merge


@dataclass(frozen=True)
class StepResult:
    """What one step leaves behind."""

    metrics: Metrics
    prompts: PromptBatch
    rollouts: RolloutBatch
    scored: ScoredRollouts


class PpoTrainer:
    """Holds the roles and takes steps; mentions neither rank nor layout."""

    def __init__(
        self,
        *,
        generator: RolloutGenerator,
        sampling: SamplingSettings,
        weight_sync: WeightSync,
        scorer: RewardScorer,
        builder: ExperienceBuilder,
        actor: Actor,
        critic: Critic,
        critic_warmup_steps: int,
        seed: int,
        phases: StepPhases,
    ) -> None:
        """Wire the parts; the engine holds no weights until the first sync."""
        self._generator = generator
        self._sampling = sampling
        self.weight_sync = weight_sync
        self.scorer = scorer
        self.builder = builder
        self._actor = actor
        self._critic = critic
        self._critic_warmup_steps = critic_warmup_steps
        self._seed = seed
        self._phases = phases

    def step(self, step: int, prompts: PromptBatch) -> StepResult:
        """Sample, judge, improve, and hand the new weights to the engine. ``step`` counts from 1."""
        with self._phases("gen"):
            rollouts, rollout_metrics = self._generate(step, prompts)
        with self._phases("reward"):
            scored = self.scorer.score(prompts, rollouts)
        experience, experience_metrics = self.builder.build(rollouts, scored)
        update_metrics = self._update(step, experience)
        with self._phases("update_weights"):
            sync_metrics = self.weight_sync.push(version=step)
        metrics = merge([rollout_metrics, scored.metrics, experience_metrics, update_metrics, sync_metrics])
        return StepResult(metrics, prompts, rollouts, scored)

    def _generate(self, step: int, prompts: PromptBatch) -> tuple[RolloutBatch, Metrics]:
        return self._generator.generate(prompts, self._sampling, step=step, policy_version=self.weight_sync.version)

    def _update(self, step: int, experience: Experience) -> Metrics:
        seed = self._seed + 1_000_003 * step
        with self._phases("update_critic"):
            critic_metrics = self._critic.update(experience, seed)
        if step <= self._critic_warmup_steps:
            return critic_metrics
        with self._phases("update_actor"):
            self.weight_sync.invalidate()
            return {**critic_metrics, **self._actor.update(experience, seed)}
