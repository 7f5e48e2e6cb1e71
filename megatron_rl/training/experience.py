"""From rollouts to experience: rewards, scores, values, advantages.

Shape suffixes: B samples, S padded tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_rl.algorithms.advantages import ADVANTAGE_ESTIMATORS, AdvantageInputs
from megatron_rl.algorithms.importance import importance_weights
from megatron_rl.algorithms.kl import KlController, kl_penalty
from megatron_rl.algorithms.masked_stats import masked_mean
from megatron_rl.algorithms.reward_shaping import token_rewards
from megatron_rl.config.algorithm import AlgorithmConfig
from megatron_rl.config.rollout import RolloutCorrectionConfig
from megatron_rl.training.roles import Actor, Critic, Reference, entropy_metrics
from megatron_rl.training.scoring import ScoredRollouts
from megatron_rl.training.step_phases import StepPhases
from megatron_rl.types.batches import Experience, RolloutBatch
from megatron_rl.types.masks import response_mask
from megatron_rl.types.metrics import Metric, Metrics


class ExperienceBuilder:
    """Consumes a ``RolloutBatch``, asks every role for its opinion, and produces an ``Experience``."""

    def __init__(
        self,
        *,
        algorithm: AlgorithmConfig,
        correction: RolloutCorrectionConfig,
        kl_controller: KlController,
        actor: Actor,
        reference: Reference,
        critic: Critic,
        phases: StepPhases,
    ) -> None:
        """Hold the roles; nothing is computed yet."""
        self._algorithm = algorithm
        self._correction = correction
        self.kl_controller = kl_controller
        self._actor = actor
        self._reference = reference
        self._critic = critic
        self._phases = phases

    def build(self, rollouts: RolloutBatch, scored: ScoredRollouts) -> tuple[Experience, Metrics]:
        """Value and judge one scored rollout batch; enters the collectives of every role."""
        old_logprobs_BS, entropy_BS = None, None
        if not self._actor.reuses_logprobs:
            with self._phases("old_log_prob"):
                old_logprobs_BS, entropy_BS = self._actor.score(rollouts)
        with self._phases("ref"):
            ref_logprobs_BS = self._reference.logprobs(rollouts, old_logprobs_BS)
        with self._phases("values"):
            values_BS = self._critic.values(rollouts)
        with self._phases("adv"):
            return self._judge(rollouts, scored, old_logprobs_BS, entropy_BS, ref_logprobs_BS, values_BS)

    def _judge(
        self,
        rollouts: RolloutBatch,
        scored: ScoredRollouts,
        old_logprobs_BS: Tensor | None,
        entropy_BS: Tensor | None,
        ref_logprobs_BS: Tensor | None,
        values_BS: Tensor,
    ) -> tuple[Experience, Metrics]:
        mask_BS = response_mask(rollouts.prompt_lengths_B, rollouts.response_lengths_B, rollouts.tokens_BS.shape[1])
        mask_BS &= scored.valid_B[:, None]
        kl_BS = torch.zeros_like(values_BS)
        if self._algorithm.use_kl_in_reward:
            assert old_logprobs_BS is not None and ref_logprobs_BS is not None
            kl_BS = kl_penalty(old_logprobs_BS, ref_logprobs_BS, self._algorithm.kl_penalty)
        coefficient = self.kl_controller.value if self._algorithm.use_kl_in_reward else 0.0
        inputs = AdvantageInputs(
            token_rewards_BS=token_rewards(scored.rewards_B, kl_BS, mask_BS, coefficient),
            values_BS=values_BS,
            mask_BS=mask_BS,
            group_ids_B=rollouts.group_ids_B,
            valid_B=scored.valid_B,
            gamma=self._algorithm.gamma,
            lam=self._algorithm.lam,
            whiten=self._algorithm.whiten_advantages,
            divide_by_std=self._algorithm.norm_adv_by_std_in_grpo,
        )
        advantages_BS, returns_BS = ADVANTAGE_ESTIMATORS[self._algorithm.adv_estimator](inputs)
        weights_BS, score_metrics = mask_BS.float(), {}
        if old_logprobs_BS is not None and entropy_BS is not None:
            weights_BS, score_metrics = importance_weights(
                old_logprobs_BS, rollouts.rollout_logprobs_BS, mask_BS, self._correction
            )
            score_metrics |= entropy_metrics(entropy_BS, mask_BS)
        experience = Experience(
            rollouts=rollouts,
            response_mask_BS=mask_BS,
            old_logprobs_BS=old_logprobs_BS,
            ref_logprobs_BS=ref_logprobs_BS,
            values_BS=values_BS,
            rewards_B=scored.rewards_B,
            advantages_BS=advantages_BS,
            returns_BS=returns_BS,
            importance_weights_BS=weights_BS,
        )
        metrics = {
            **score_metrics,
            "group/frac_zero_std": Metric(inputs.group_stats().zero_variance_frac),
            **_data_metrics(experience),
        }
        if self._algorithm.use_kl_in_reward:
            mean_kl = float(masked_mean(kl_BS, mask_BS))
            metrics["actor/reward_kl_penalty"] = Metric(mean_kl)
            metrics["actor/reward_kl_penalty_coeff"] = Metric(coefficient)
            self.kl_controller.adapt(mean_kl, rollouts.tokens_BS.shape[0])
        return experience, metrics


def _spread(name: str, values: Tensor) -> Metrics:
    """Mean, max and min of a non-empty tensor."""
    if values.numel() == 0:
        return {}
    return {
        f"{name}/mean": Metric(float(values.mean())),
        f"{name}/max": Metric(float(values.max()), "max"),
        f"{name}/min": Metric(float(values.min()), "min"),
    }


def _data_metrics(experience: Experience) -> Metrics:
    """Names users know: the spread of advantages, returns and values over counted tokens."""
    mask_BS = experience.response_mask_BS
    returns, values = experience.returns_BS[mask_BS], experience.values_BS[mask_BS]
    metrics = {
        **_spread("critic/advantages", experience.advantages_BS[mask_BS]),
        **_spread("critic/returns", returns),
        **_spread("critic/values", values),
        "batch/num_empty_responses": Metric(float((experience.rollouts.response_lengths_B == 0).sum()), "sum"),
    }
    if values.numel() and bool(values.any()):
        residual = torch.var(returns - values, correction=0)
        metrics["critic/vf_explained_var"] = Metric(float(1 - residual / (torch.var(returns, correction=0) + 1e-5)))
    return metrics
