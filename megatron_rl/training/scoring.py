"""Rewards of a rollout batch, computed by all ranks together and known to all afterwards."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from megatron_rl.data.tokenizer import Tokenizer
from megatron_rl.parallel.gather import gather_objects
from megatron_rl.rewards.reward import RewardResult, RewardSample
from megatron_rl.rewards.sandbox import RewardPool
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.metrics import Metrics, merge
from megatron_rl.types.prompts import PromptBatch


@dataclass(frozen=True)
class ScoredRollouts:
    """Rewards of a rollout batch and which samples count."""

    rewards_B: Tensor
    """f32, 0 where invalid."""
    valid_B: Tensor
    """bool, False for samples the reward policy masks out."""
    responses: tuple[str, ...]
    """B response texts, special tokens removed."""


@dataclass(frozen=True)
class _Share:
    """One rank's answer: its scores, or why it has none."""

    result: RewardResult | None
    failure: str | None


class RewardScorer:
    """Each rank scores every world-size-th sample in its worker pool; the answers are gathered to all ranks."""

    def __init__(self, pool: RewardPool, tokenizer: Tokenizer, group: ProcessGroup) -> None:
        """Use ``pool`` for this rank's share; ``group`` covers all ranks and carries objects (gloo)."""
        self._pool = pool
        self._tokenizer = tokenizer
        self._group = group

    def score(self, prompts: PromptBatch, rollouts: RolloutBatch) -> tuple[ScoredRollouts, Metrics]:
        """Score all samples and count what went wrong; a failure on one rank is raised on every rank.

        Collectives: one object all-gather over all ranks.

        Raises:
            RuntimeError: a scorer failed and ``reward.on_invalid`` says to stop.
        """
        responses = self._responses(rollouts)
        samples = self._samples(prompts, rollouts, responses)
        rank, world = dist.get_rank(self._group), dist.get_world_size(self._group)
        shares = gather_objects(self._score_share(samples[rank::world]), self._group).values()
        failures = [share.failure for share in shares if share.failure is not None]
        if failures:
            raise RuntimeError(failures[0])
        return _join([share.result for share in shares if share.result is not None], responses)

    def _responses(self, rollouts: RolloutBatch) -> tuple[str, ...]:
        starts, lengths = rollouts.prompt_lengths_B.tolist(), rollouts.response_lengths_B.tolist()
        rows = rollouts.tokens_BS.tolist()
        return tuple(self._tokenizer.decode_batch([row[a : a + n] for row, a, n in zip(rows, starts, lengths, strict=True)]))

    def _samples(self, prompts: PromptBatch, rollouts: RolloutBatch, responses: tuple[str, ...]) -> list[RewardSample]:
        samples = []
        for index, (group, response) in enumerate(zip(rollouts.group_ids_B.tolist(), responses, strict=True)):
            prompt = prompts.prompts[group]
            samples.append(
                RewardSample(
                    uid=f"{prompt.uid}/{index}",
                    prompt=prompt.text,
                    response=response,
                    row=prompt.row,
                )
            )
        return samples

    def _score_share(self, samples: list[RewardSample]) -> _Share:
        try:
            return _Share(self._pool.score(samples), None)
        except Exception as error:
            # The other ranks wait in the gather: tell them, and then all of them raise.
            return _Share(None, f"{type(error).__name__}: {error}")


def _join(shares: list[RewardResult], responses: tuple[str, ...]) -> tuple[ScoredRollouts, Metrics]:
    num_samples, world = len(responses), len(shares)
    rewards_B = torch.zeros(num_samples)
    valid_B = torch.zeros(num_samples, dtype=torch.bool)
    for rank, share in enumerate(shares):
        rewards_B[rank::world] = torch.tensor(share.rewards, dtype=torch.float32)
        valid_B[rank::world] = torch.tensor(share.valid, dtype=torch.bool)
    return ScoredRollouts(rewards_B, valid_B, responses), merge([share.metrics for share in shares])
