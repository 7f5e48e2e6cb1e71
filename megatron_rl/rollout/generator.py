"""One step's rollouts over all engines of the job.

Shape suffixes: P prompts, B = P * n samples, S padded tokens.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from megatron_rl.parallel.gather import gather_objects
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.rollout.agreement import fingerprint, require_agreement, require_success
from megatron_rl.rollout.engine import RolloutEngine
from megatron_rl.rollout.outputs import PackedCompletions
from megatron_rl.rollout.prompt_distribution import distribute_prompts
from megatron_rl.rollout.response_metrics import imbalance_metrics, response_metrics
from megatron_rl.rollout.sampling import SamplingSettings, request_seed
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.metrics import Metrics
from megatron_rl.types.prompts import PromptBatch

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What one rank is about to generate from."""

    fingerprints: dict[str, str]
    problem: str | None
    """Why it cannot."""


@dataclass(frozen=True, slots=True)
class _Outputs:
    """What one rank got from its engine shard."""

    digest: bytes
    completions: PackedCompletions | None
    """Of the first rank of each engine only: the others hold the same."""
    failure: str | None


class RolloutGenerator:
    """Turns prompts into a ``RolloutBatch`` that is the same on every rank.

    Each engine (a tensor-parallel group of ranks) answers a balanced share of the prompts. Before generating, the ranks
    prove to each other that they were asked the same; after, that the ranks of an engine answered the same.
    """

    def __init__(
        self, engine: RolloutEngine, layout: RolloutLayout, group: ProcessGroup, *, seed: int, pad_token_id: int = 0
    ) -> None:
        """Bind this rank's engine shard.

        Args:
            engine: this rank's shard.
            layout: TP x DP grid of the shards.
            group: all ranks of ``layout``; carries CPU tensors (gloo).
            seed: sampling seed of the run.
            pad_token_id: fills ``tokens_BS`` behind each response.
        """
        self._engine = engine
        self._layout = layout
        self._group = group
        self._seed = seed
        self._pad_token_id = pad_token_id

    def generate(
        self, prompts: PromptBatch, settings: SamplingSettings, *, step: int, policy_version: int, first_index: int = 0
    ) -> tuple[RolloutBatch, Metrics]:
        """Sample ``settings.n`` responses to each prompt.

        Args:
            prompts: P prompts, the same on every rank.
            settings: how to sample.
            step: with the run's seed and a prompt's index it decides that prompt's samples.
            policy_version: the weights the caller means to sample from; must be those the engine holds.
            first_index: index of the first prompt in the step, above 0 where the step has sampled others before.

        Returns the batch (CPU tensors) and its metrics, identical on every rank.
        Raises RuntimeError, on all ranks, where the ranks of an engine were asked or answered differently, where a
        prompt does not fit, where the engine's weights are not ``policy_version``, or where an engine failed.
        Collectives: all ranks of the layout.
        """
        seeds = [request_seed(self._seed, step, first_index + index) for index in range(len(prompts.prompts))]
        self._agree_on_inputs(prompts, settings, seeds, policy_version)
        shares = distribute_prompts([len(p.token_ids) for p in prompts.prompts], self._layout.data)
        engine_index, tensor_rank = self._layout.slot(dist.get_rank())
        mine = self._ask_engine(prompts, shares[engine_index], settings, seeds, publish=tensor_rank == 0)
        outputs = gather_objects(mine, self._group)
        self._agree_on_outputs(outputs)
        completions = self._in_prompt_order(outputs, shares, settings.n)
        batch = to_rollout_batch(prompts, completions, policy_version, self._pad_token_id)
        return batch, {**response_metrics(batch), **imbalance_metrics(batch, shares, settings.n)}

    def _agree_on_inputs(self, prompts: PromptBatch, settings: SamplingSettings, seeds: list[int], policy_version: int) -> None:
        fingerprints = fingerprint(
            {
                "prompts": [prompt.token_ids for prompt in prompts.prompts],
                "sampling settings": settings,
                "seed": seeds,
                "policy version": policy_version,
            }
        )
        inputs = gather_objects(_Inputs(fingerprints, self._problem(prompts, settings, policy_version)), self._group)
        # The whole batch is replicated, so all ranks are compared, not only those of one engine.
        everyone = tuple(inputs)
        require_agreement({rank: found.fingerprints for rank, found in inputs.items()}, [everyone], "rollout inputs")
        require_success({rank: found.problem for rank, found in inputs.items()})

    def _problem(self, prompts: PromptBatch, settings: SamplingSettings, policy_version: int) -> str | None:
        if self._engine.policy_version != policy_version:
            held = self._engine.policy_version
            return (
                f"asked to sample from weights of version {policy_version}, but the engine holds "
                f"{'no valid weights' if held is None else f'version {held}'}; a weight sync is missing"
            )
        room = self._engine.max_model_len - settings.max_new_tokens
        for prompt in prompts.prompts:
            if not 1 <= len(prompt.token_ids) <= room:
                return (
                    f"prompt {prompt.uid} has {len(prompt.token_ids)} tokens; with data.max_response_length="
                    f"{settings.max_new_tokens} and rollout.max_model_len={self._engine.max_model_len} it must have 1 to {room}"
                )
        return None

    def _ask_engine(
        self, prompts: PromptBatch, share: list[int], settings: SamplingSettings, seeds: list[int], *, publish: bool
    ) -> _Outputs:
        try:
            completions = self._engine.generate(
                [prompts.prompts[index].token_ids for index in share],
                settings,
                [seeds[index] for index in share],
            )
        except Exception as error:
            # The other ranks wait for this one: it tells them, and then all of them raise.
            _LOG.exception("the rollout engine failed")
            return _Outputs(b"", None, f"{type(error).__name__}: {error}")
        packed = PackedCompletions.pack([sample for samples in completions for sample in samples])
        return _Outputs(packed.digest(), packed if publish else None, None)

    def _agree_on_outputs(self, outputs: dict[int, _Outputs]) -> None:
        require_success({rank: found.failure for rank, found in outputs.items()})
        digests = {rank: {"sampled tokens": found.digest.hex()} for rank, found in outputs.items()}
        require_agreement(digests, self._layout.tensor_groups(), "rollout outputs")

    def _in_prompt_order(self, outputs: dict[int, _Outputs], shares: list[list[int]], n: int) -> PackedCompletions:
        parts, rows = [], []
        for ranks, share in zip(self._layout.tensor_groups(), shares, strict=True):
            packed = outputs[ranks[0]].completions
            assert packed is not None
            assert len(packed.lengths_C) == len(share) * n, (len(packed.lengths_C), len(share), n)
            parts.append(packed)
            rows += [prompt * n + sample for prompt in share for sample in range(n)]
        return PackedCompletions.joined(parts, np.argsort(rows).tolist())


def to_rollout_batch(
    prompts: PromptBatch, completions: PackedCompletions, policy_version: int, pad_token_id: int
) -> RolloutBatch:
    """Lay P prompts with n completions each, in the prompts' order, into right-padded tensors: a prompt's are adjacent rows.

    Ids are the engine's own. Lengths come from the engine's counts, never from the ids: pad may equal EOS.
    """
    num_prompts, num_samples = len(prompts.prompts), len(completions.lengths_C)
    n = num_samples // num_prompts
    assert n * num_prompts == num_samples, (num_prompts, num_samples)
    prompt_ids = [np.array(prompt.token_ids, dtype=np.int64) for prompt in prompts.prompts]
    prompt_lengths_B = np.repeat([len(ids) for ids in prompt_ids], n)
    stops_B = np.cumsum(completions.lengths_C)
    width = int((prompt_lengths_B + completions.lengths_C).max())
    tokens_BS = np.full((num_samples, width), pad_token_id, dtype=np.int64)
    logprobs_BS = np.zeros((num_samples, width), dtype=np.float32)
    for row, (start, length, stop) in enumerate(zip(prompt_lengths_B, completions.lengths_C, stops_B, strict=True)):
        tokens_BS[row, :start] = prompt_ids[row // n]
        tokens_BS[row, start : start + length] = completions.token_ids_T[stop - length : stop]
        logprobs_BS[row, start : start + length] = completions.logprobs_T[stop - length : stop]
    return RolloutBatch(
        tokens_BS=torch.from_numpy(tokens_BS),
        prompt_lengths_B=torch.from_numpy(prompt_lengths_B),
        response_lengths_B=torch.from_numpy(completions.lengths_C),
        rollout_logprobs_BS=torch.from_numpy(logprobs_BS),
        group_ids_B=torch.arange(num_prompts).repeat_interleave(n),
        finish_reasons=completions.finish_reasons,
        policy_version=policy_version,
    )
