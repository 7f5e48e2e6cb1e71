"""Actor, critic and reference as the trainer sees them: no rank, no layout, and a null object where a role is absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from megatron_rl.algorithms.importance import mismatch_metrics
from megatron_rl.algorithms.masked_stats import masked_mean
from megatron_rl.config.training import ActorConfig, CriticConfig, TrainedRoleConfig
from megatron_rl.training.loss_closures import PolicyLoss, ValueLoss
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.mini_batches import mini_batches
from megatron_rl.types.batches import Experience, MiniBatch, RolloutBatch
from megatron_rl.types.metrics import Metric, Metrics, merge


class Critic(Protocol):
    """Values of states, and their update."""

    def values(self, rollouts: RolloutBatch) -> Tensor:
        """F32 ``[B, S]``, value of the state in which each token was chosen."""

    def update(self, experience: Experience, seed: int) -> Metrics:
        """Fit the values to the experience's returns."""


class Reference(Protocol):
    """The frozen policy of the KL terms."""

    def logprobs(self, rollouts: RolloutBatch, old_logprobs_BS: Tensor | None) -> Tensor | None:
        """F32 ``[B, S]``, reference log-probs of each token; None where no loss term reads them."""


@dataclass(frozen=True)
class UpdateCut:
    """How one role cuts an experience into optimizer steps."""

    config: TrainedRoleConfig
    samples_per_prompt: int
    max_response_length: int

    def run(self, role: MegatronRole, experience: Experience, loss: PolicyLoss | ValueLoss, seed: int) -> Metrics:
        """Every optimizer step of one role over one experience; enters the role's collectives."""
        batches = _with_successor(self.mini_batches(experience, seed))
        return merge([role.update(batch, loss, another_follows=follows) for batch, follows in batches])

    def mini_batches(self, experience: Experience, seed: int) -> Iterator[MiniBatch]:
        """One for each optimizer step, in order."""
        prompts = self.config.ppo_mini_batch_size
        return mini_batches(
            experience,
            samples_per_batch=None if prompts is None else prompts * self.samples_per_prompt,
            epochs=self.config.ppo_epochs,
            shuffle=self.config.shuffle,
            loss_agg_mode=self.config.loss_agg_mode,
            max_response_length=self.max_response_length,
            seed=seed,
        )


class Actor:
    """The policy under training."""

    def __init__(self, role: MegatronRole, config: ActorConfig, cut: UpdateCut, *, reuses_logprobs: bool) -> None:
        """Bind a Megatron role, built at the rollout's temperature, to the policy loss.

        Args:
            role: the policy.
            config: of the loss.
            cut: of the update.
            reuses_logprobs: the update consists of one optimizer step, whose forward pass gives the old log-probs.
        """
        self.role = role
        self.reuses_logprobs = reuses_logprobs
        self._loss = PolicyLoss(config)
        self._cut = cut

    def score(self, rollouts: RolloutBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of each token, f32 ``[B, S]`` in token coordinates, on every rank."""
        return self.role.score(rollouts, with_entropy=True)

    def update(self, experience: Experience, seed: int) -> Metrics:
        """Improve the policy on the experience; says also how it agreed with the engine where no score has told that."""
        if experience.old_logprobs_BS is not None:
            return prefixed("actor", self._cut.run(self.role, experience, self._loss, seed))
        (batch,) = self._cut.mini_batches(experience, seed)
        metrics, logprobs_BS, entropy_BS = self.role.update_and_score(batch, self._loss)
        mask_BS = experience.response_mask_BS
        return {
            **prefixed("actor", metrics),
            **mismatch_metrics(logprobs_BS, experience.rollouts.rollout_logprobs_BS, mask_BS),
            **entropy_metrics(entropy_BS, mask_BS),
        }


class ValueModel:
    """A trained critic with its own layout."""

    def __init__(self, role: MegatronRole, config: CriticConfig, cut: UpdateCut) -> None:
        """Bind a Megatron role with a value head to the value loss."""
        self.role = role
        self._loss = ValueLoss(config)
        self._cut = cut

    def values(self, rollouts: RolloutBatch) -> Tensor:
        """F32 ``[B, S]``, value of the state in which each token was chosen."""
        return self.role.values(rollouts)

    def update(self, experience: Experience, seed: int) -> Metrics:
        """Fit the values to the returns."""
        return prefixed("critic", self._cut.run(self.role, experience, self._loss, seed))


class NullCritic:
    """No critic: zero values, nothing to train."""

    def values(self, rollouts: RolloutBatch) -> Tensor:
        """Zeros."""
        return torch.zeros_like(rollouts.rollout_logprobs_BS)

    def update(self, experience: Experience, seed: int) -> Metrics:
        """Do nothing."""
        return {}


class FrozenReference:
    """A reference policy of its own."""

    def __init__(self, role: MegatronRole) -> None:
        """Bind a frozen Megatron role, built at the rollout's temperature."""
        self.role = role

    def logprobs(self, rollouts: RolloutBatch, old_logprobs_BS: Tensor | None) -> Tensor:
        """Score with the frozen weights."""
        return self.role.score(rollouts)[0]


class NullReference:
    """No KL term reads a reference: the policy itself stands in, so that every KL is exactly zero."""

    def logprobs(self, rollouts: RolloutBatch, old_logprobs_BS: Tensor | None) -> Tensor | None:
        """The old log-probs, if there are any yet."""
        return old_logprobs_BS


def entropy_metrics(entropy_BS: Tensor, mask_BS: Tensor) -> Metrics:
    """Mean entropy of the policy over counted tokens."""
    return {"actor/entropy": Metric(float(masked_mean(entropy_BS, mask_BS)))}


def _with_successor(batches: Iterable[MiniBatch]) -> Iterator[tuple[MiniBatch, bool]]:
    """Each mini-batch and whether another follows, one ahead of the caller."""
    ahead = iter(batches)
    current = next(ahead, None)
    while current is not None:
        following = next(ahead, None)
        yield current, following is not None
        current = following


def prefixed(role: str, metrics: Metrics) -> dict[str, Metric]:
    """Put names without a family under the role's: ``grad_norm`` -> ``actor/grad_norm``."""
    return {name if "/" in name else f"{role}/{name}": metric for name, metric in metrics.items()}
