"""Held-out accuracy: sample, score, and report pass@k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megatron_rl.algorithms.pass_at_k import RIGHT_ABOVE, pass_at_k, powers_of_two
from megatron_rl.rollout.generator import RolloutGenerator
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.training.scoring import RewardScorer
from megatron_rl.types.metrics import Metric, Metrics
from megatron_rl.types.prompts import PromptBatch


class Validator:
    """Answers a fixed set of held-out prompts with the current engine weights."""

    def __init__(
        self,
        *,
        batches: Sequence[PromptBatch],
        generator: RolloutGenerator,
        sampling: SamplingSettings,
        scorer: RewardScorer,
    ) -> None:
        """Hold the prompts; each batch goes into one engine call."""
        self._batches = batches
        self._generator = generator
        self._sampling = sampling
        self._scorer = scorer

    def run(self, policy_version: int) -> Metrics:
        """Validate; the same questions and the same sampling seeds every time. Enters the generator's collectives."""
        rewards = np.concatenate([self._rewards(batch, policy_version) for batch in self._batches])
        right = rewards > RIGHT_ABOVE
        n = rewards.shape[1]
        metrics = {
            "val/reward/mean": Metric(float(rewards.mean())),
            "val/accuracy/mean": Metric(float(right.mean())),
            "val/num_prompts": Metric(float(rewards.shape[0]), "sum"),
        }
        for k in powers_of_two(n):
            metrics[f"val/pass@{k}"] = Metric(float(np.mean([pass_at_k(n, int(c), k) for c in right.sum(axis=1)])))
        return metrics

    def _rewards(self, batch: PromptBatch, policy_version: int) -> np.ndarray:
        rollouts, _ = self._generator.generate(batch, self._sampling, step=0, policy_version=policy_version)
        scored, _ = self._scorer.score(batch, rollouts)
        return scored.rewards_B.cpu().numpy().reshape(len(batch.prompts), self._sampling.n)
