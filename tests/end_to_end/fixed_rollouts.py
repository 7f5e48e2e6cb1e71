"""A rollout side that answers from a fixed table: the RL step around it, its roles and its losses are the real ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.training.rollout_assembly import RolloutSide
from megatron_rl.training.scoring import ScoredRollouts
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.metrics import Metrics
from megatron_rl.types.prompts import PromptBatch

NUM_PROMPTS, SAMPLES_PER_PROMPT, WIDTH, VOCAB_SIZE = 4, 4, 26, 251


def fixed_rollouts() -> RolloutBatch:
    """Ragged prompts and responses; one response is empty, rubbish in the padding."""
    generator = torch.Generator().manual_seed(11)
    num_samples = NUM_PROMPTS * SAMPLES_PER_PROMPT
    prompts_B = torch.randint(2, 9, (NUM_PROMPTS,), generator=generator).repeat_interleave(SAMPLES_PER_PROMPT)
    responses_B = torch.randint(1, WIDTH - 9, (num_samples,), generator=generator)
    responses_B[6] = 0
    tokens_BS = torch.randint(VOCAB_SIZE, (num_samples, WIDTH), generator=generator)
    return RolloutBatch(
        tokens_BS=tokens_BS,
        prompt_lengths_B=prompts_B,
        response_lengths_B=responses_B,
        rollout_logprobs_BS=-5.5 + 0.1 * torch.randn(num_samples, WIDTH, generator=generator),
        group_ids_B=torch.arange(NUM_PROMPTS).repeat_interleave(SAMPLES_PER_PROMPT),
        finish_reasons=tuple("abort" if i == 6 else "length" for i in range(num_samples)),
        policy_version=0,
    )


class FixedGenerator:
    """Stands where the ``RolloutGenerator`` does."""

    def generate(
        self, prompts: PromptBatch, settings: SamplingSettings, *, step: int, policy_version: int, first_index: int = 0
    ) -> tuple[RolloutBatch, Metrics]:
        assert len(prompts.prompts) == NUM_PROMPTS
        return fixed_rollouts(), {}


class FixedScorer:
    """Stands where the ``RewardScorer`` does: one sample of 16 is masked out."""

    def score(self, prompts: PromptBatch, rollouts: RolloutBatch) -> tuple[ScoredRollouts, Metrics]:
        rewards_B = torch.arange(rollouts.response_lengths_B.numel(), dtype=torch.float32).mul(7).remainder(5)
        valid_B = torch.ones(rewards_B.numel(), dtype=torch.bool)
        valid_B[9] = False
        return ScoredRollouts(rewards_B * valid_B, valid_B, ("",) * rewards_B.numel()), {}


@dataclass
class NoSync:
    """Stands where the ``WeightSync`` does: there is no engine to feed."""

    version: int = 0

    def invalidate(self) -> None:
        return None

    def push(self, version: int) -> Metrics:
        self.version = version
        return {}


def fixed_rollout_side() -> RolloutSide:
    """What ``build_rollout_side`` would return."""
    sampling = SamplingSettings(n=SAMPLES_PER_PROMPT, max_new_tokens=WIDTH)
    return RolloutSide(engine=None, generator=FixedGenerator(), sampling=sampling, validation_sampling=sampling)  # type: ignore[arg-type]
