"""Sampling one step, with and without dynamic sampling: generator and scorer are tables."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import torch

from megatron_rl.config.algorithm import FilterGroupsConfig
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.training.scoring import ScoredRollouts
from megatron_rl.training.step_sampler import SampledStep, SampledTokens, SamplingInterruptedError, StepSampler
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.metrics import Metric, Metrics, to_floats
from megatron_rl.types.prompts import Prompt, PromptBatch

N = 2
MIXED, RIGHT, WRONG = (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)


@dataclass
class TableGenerator:
    """Answers prompt ``i`` with ``i + 1`` tokens, all of id ``i``."""

    calls: list[tuple[int, int]] = field(default_factory=list)

    def generate(
        self, prompts: PromptBatch, settings: SamplingSettings, *, step: int, policy_version: int, first_index: int
    ) -> tuple[RolloutBatch, Metrics]:
        self.calls.append((step, first_index))
        ids = [prompt.token_ids[0] for prompt in prompts.prompts for _ in range(N)]
        lengths_B = torch.tensor(ids) + 1
        width = int(lengths_B.max()) + 1
        rollouts = RolloutBatch(
            tokens_BS=torch.tensor(ids)[:, None].repeat(1, width),
            prompt_lengths_B=torch.ones(len(ids), dtype=torch.int64),
            response_lengths_B=lengths_B,
            rollout_logprobs_BS=torch.zeros(len(ids), width),
            group_ids_B=torch.arange(len(prompts.prompts)).repeat_interleave(N),
            finish_reasons=("stop",) * len(ids),
            policy_version=policy_version,
        )
        return rollouts, {"rollout/generated_tokens": Metric(float(lengths_B.sum()), "sum")}


class RowScorer:
    """Rewards stand in the prompts' rows."""

    def score(self, prompts: PromptBatch, rollouts: RolloutBatch) -> tuple[ScoredRollouts, Metrics]:
        rewards_B = torch.tensor([reward for prompt in prompts.prompts for reward in prompt.row["rewards"]])
        texts = tuple(f"{prompt.uid}/{i}" for prompt in prompts.prompts for i in range(N))
        return ScoredRollouts(rewards_B, torch.ones_like(rewards_B, dtype=torch.bool), texts), {}


@dataclass(frozen=True)
class Answer:
    step: SampledStep
    metrics: dict[str, float]
    calls: list[tuple[int, int]]
    said: list[str]


def _sample(
    groups: list[tuple[float, float]], batch_size: int, num_groups: int, interrupted: bool = False, **rule: Any
) -> Answer:
    """One step over endless prompts whose rewards are ``groups``, again and again."""
    numbers = count()

    def next_prompts() -> PromptBatch:
        rows = [next(numbers) for _ in range(batch_size)]
        return PromptBatch(
            prompts=tuple(Prompt(uid=f"p{i}", token_ids=(i,), text="", row={"rewards": groups[i % len(groups)]}) for i in rows),
            epoch=rows[-1] // len(groups),
        )

    generator, said = TableGenerator(), list[str]()
    sampler = StepSampler(
        generator=generator,  # type: ignore[arg-type]
        sampling=SamplingSettings(n=N, max_new_tokens=99),
        scorer=RowScorer(),  # type: ignore[arg-type]
        filter_groups=FilterGroupsConfig(**rule),
        num_groups=num_groups,
        phases=lambda phase: nullcontext(),  # type: ignore[arg-type]
        interrupted=lambda: interrupted,
        say=said.append,
    )
    step, metrics = sampler.sample(7, next_prompts, policy_version=3)
    return Answer(step, to_floats(metrics), generator.calls, said)


def _uids(prompts: PromptBatch) -> list[str]:
    return [prompt.uid for prompt in prompts.prompts]


def test_sample_without_filter_takes_one_batch_as_it_is() -> None:
    found = _sample([WRONG, MIXED], 2, 2)
    assert found.calls == [(7, 0)]
    assert found.step.trained is found.step.kept
    assert found.step.trained_B.all()
    assert "group/frac_kept" not in found.metrics and "train/num_gen_batches" not in found.metrics
    assert found.metrics["group/frac_zero_std"] == 0.5


def test_sample_goes_on_until_enough_groups_differ() -> None:
    found = _sample([WRONG, MIXED, RIGHT, MIXED, MIXED, MIXED], 3, 2, enable=True)
    assert found.calls == [(7, 0), (7, 3)], "the second batch of a step has the seeds of the prompts that follow"
    trained = found.step.trained
    assert _uids(trained.prompts) == ["p1", "p3"], "the first that differ; the surplus is dropped"
    assert trained.scored.responses == ("p1/0", "p1/1", "p3/0", "p3/1")
    assert trained.rollouts.tokens_BS[:, 0].tolist() == [1, 1, 3, 3]
    assert trained.rollouts.tokens_BS.shape[1] == 1 + 4, "cut to the longest that is left"
    assert trained.rollouts.group_ids_B.tolist() == [0, 0, 1, 1]
    assert trained.scored.rewards_B.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert _uids(found.step.kept.prompts) == ["p0", "p1", "p2", "p3"], "and some to be read"
    assert found.step.trained_B.tolist() == [False, False, True, True, False, False, True, True]


def test_sample_reports_all_samples() -> None:
    found = _sample([WRONG, MIXED, WRONG, WRONG, WRONG, MIXED], 3, 2, enable=True)
    metrics = found.metrics
    assert len(found.step.kept.prompts.prompts) == 4, "two groups are dropped, and yet:"
    assert found.step.tokens == SampledTokens(prompt=N * 6, response=N * sum(range(1, 7)))
    assert metrics["reward/mean"] == pytest.approx(2 / 12)
    assert metrics["reward/std"] == pytest.approx((1 / 6 * 5 / 6) ** 0.5)
    assert metrics["group/frac_zero_std"] == 4 / 6
    assert metrics["group/frac_kept"] == 2 / 6
    assert metrics["group/num_filled"] == 0
    assert metrics["train/num_gen_batches"] == 2
    assert metrics["rollout/generated_tokens"] == N * sum(range(1, 7))


def test_sample_fills_up_at_the_limit() -> None:
    found = _sample([RIGHT, WRONG, WRONG, MIXED], 2, 3, enable=True, max_num_gen_batches=2)
    assert _uids(found.step.trained.prompts) == ["p0", "p1", "p3"]
    assert found.metrics["group/num_filled"] == 2
    assert found.metrics["train/num_gen_batches"] == 2


def test_sample_counts_right_answers_with_metric_acc() -> None:
    found = _sample([(0.1, 0.3), (0.3, 0.8)], 2, 1, enable=True, metric="acc")
    assert _uids(found.step.trained.prompts) == ["p1"]


def test_sample_says_when_it_takes_long() -> None:
    found = _sample([*[RIGHT] * 24, MIXED], 1, 1, enable=True)
    assert len(found.calls) == 25
    assert [text.split(",")[0] for text in found.said] == ["step 7: 10 gen batches so far", "step 7: 20 gen batches so far"]
    assert "max_num_gen_batches=0 never ends that" in found.said[0]


def test_sample_gives_up_when_interrupted_before_it_has_enough() -> None:
    with pytest.raises(SamplingInterruptedError):
        _sample([WRONG, MIXED], 1, 1, interrupted=True, enable=True)
    assert _sample([MIXED, WRONG], 1, 1, interrupted=True, enable=True).calls == [(7, 0)]
