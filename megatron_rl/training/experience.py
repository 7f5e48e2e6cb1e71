"""From rollouts to experience: rewards, scores, values, advantages.

Shape suffixes: B samples, S padded tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from megatron_rl.types.metrics import Metric, Metrics, spread


@dataclass(frozen=True, slots=True)
class _Opinions:
    """What the roles say of a rollout batch, f32 ``[B, S]`` in token coordinates."""

    old_logprobs_BS: Tensor | None
    """None where the update's own forward pass gives them."""
    entropy_BS: Tensor | None
    """Of the actor; None as above."""
    ref_logprobs_BS: Tensor | None
    """None where no loss term reads them."""
    values_BS: Tensor
    """Zeros without a critic."""


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
        opinions = self._ask_roles(rollouts)
        with self._phases("adv"):
            return self._judge(rollouts, scored, opinions)

    def _ask_roles(self, rollouts: RolloutBatch) -> _Opinions:
        old_logprobs_BS, entropy_BS = None, None
        if not self._actor.reuses_logprobs:
            with self._phases("old_log_prob"):
                old_logprobs_BS, entropy_BS = self._actor.score(rollouts)
        with self._phases("ref"):
            ref_logprobs_BS = self._reference.logprobs(rollouts, old_logprobs_BS)
        with self._phases("values"):
            values_BS = self._critic.values(rollouts)
        return _Opinions(old_logprobs_BS, entropy_BS, ref_logprobs_BS, values_BS)

    def _judge(self, rollouts: RolloutBatch, scored: ScoredRollouts, opinions: _Opinions) -> tuple[Experience, Metrics]:
        mask_BS = response_mask(rollouts.prompt_lengths_B, rollouts.response_lengths_B, rollouts.tokens_BS.shape[1])
        mask_BS &= scored.valid_B[:, None]
        kl_BS, kl_coef = self._kl_in_reward(opinions)
        inputs = AdvantageInputs(
            token_rewards_BS=token_rewards(scored.rewards_B, kl_BS, mask_BS, kl_coef),
            values_BS=opinions.values_BS,
            mask_BS=mask_BS,
            group_ids_B=rollouts.group_ids_B,
            valid_B=scored.valid_B,
            gamma=self._algorithm.gamma,
            lam=self._algorithm.lam,
            whiten=self._algorithm.whiten_advantages,
            divide_by_std=self._algorithm.norm_adv_by_std_in_grpo,
        )
        advantages_BS, returns_BS = ADVANTAGE_ESTIMATORS[self._algorithm.adv_estimator](inputs)
        weights_BS, score_metrics = self._importance(rollouts, opinions, mask_BS)
        experience = Experience(
            rollouts=rollouts,
            response_mask_BS=mask_BS,
            old_logprobs_BS=opinions.old_logprobs_BS,
            ref_logprobs_BS=opinions.ref_logprobs_BS,
            values_BS=opinions.values_BS,
            rewards_B=scored.rewards_B,
            advantages_BS=advantages_BS,
            returns_BS=returns_BS,
            importance_weights_BS=weights_BS,
        )
        return experience, {
            **score_metrics,
            **_data_metrics(experience),
            **self._adapt_kl(kl_BS, kl_coef, mask_BS),
        }

    def _kl_in_reward(self, opinions: _Opinions) -> tuple[Tensor, float]:
        """KL to the reference of each token, nats, and what it costs there; zeros where it is not in the reward."""
        if not self._algorithm.use_kl_in_reward:
            return torch.zeros_like(opinions.values_BS), 0.0
        assert opinions.old_logprobs_BS is not None and opinions.ref_logprobs_BS is not None
        kl_BS = kl_penalty(opinions.old_logprobs_BS, opinions.ref_logprobs_BS, self._algorithm.kl_penalty)
        return kl_BS, self.kl_controller.value

    def _importance(self, rollouts: RolloutBatch, opinions: _Opinions, mask_BS: Tensor) -> tuple[Tensor, Metrics]:
        """Rollout-mismatch weights, ones where the update itself is the first to score, and the metrics of the scores."""
        if opinions.old_logprobs_BS is None or opinions.entropy_BS is None:
            return mask_BS.float(), {}
        weights_BS, metrics = importance_weights(
            opinions.old_logprobs_BS, rollouts.rollout_logprobs_BS, mask_BS, self._correction
        )
        return weights_BS, {**metrics, **entropy_metrics(opinions.entropy_BS, mask_BS)}

    def _adapt_kl(self, kl_BS: Tensor, kl_coef: float, mask_BS: Tensor) -> Metrics:
        """Report the step's KL and coefficient, and let the controller choose that of the next step."""
        if not self._algorithm.use_kl_in_reward:
            return {}
        mean_kl = float(masked_mean(kl_BS, mask_BS))
        self.kl_controller.adapt(mean_kl, mask_BS.shape[0])
        return {"actor/reward_kl_penalty": Metric(mean_kl), "actor/reward_kl_penalty_coeff": Metric(kl_coef)}


def _data_metrics(experience: Experience) -> Metrics:
    """Names users know: the spread of advantages, returns and values over counted tokens."""
    mask_BS = experience.response_mask_BS
    returns, values = experience.returns_BS[mask_BS], experience.values_BS[mask_BS]
    metrics = {
        **spread("critic/advantages", experience.advantages_BS[mask_BS]),
        **spread("critic/returns", returns),
        **spread("critic/values", values),
        "batch/num_empty_responses": Metric(float((experience.rollouts.response_lengths_B == 0).sum()), "sum"),
    }
    if values.numel() and bool(values.any()):
        residual = torch.var(returns - values, correction=0)
        metrics["critic/vf_explained_var"] = Metric(float(1 - residual / (torch.var(returns, correction=0) + 1e-5)))
    return metrics
