"""Rows of rollout batches: several batches as one, some rows of one.

Shape suffixes: P prompts, B samples, S padded tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from megatron_rl.types.batches import RolloutBatch


def join_rollouts(parts: Sequence[RolloutBatch]) -> RolloutBatch:
    """Lay batches sampled from the same weights one below the other, right-padded with 0 to the widest.

    Group ids go on counting: part ``i`` starts where the ids of part ``i - 1`` end.
    """
    (version,) = {part.policy_version for part in parts}
    width = max(part.tokens_BS.shape[1] for part in parts)
    num_groups = torch.tensor([0, *(int(part.group_ids_B.max()) + 1 for part in parts)]).cumsum(0).tolist()

    def widened(tensor_BS: Tensor) -> Tensor:
        return pad(tensor_BS, (0, width - tensor_BS.shape[1]))

    return RolloutBatch(
        tokens_BS=torch.cat([widened(part.tokens_BS) for part in parts]),
        prompt_lengths_B=torch.cat([part.prompt_lengths_B for part in parts]),
        response_lengths_B=torch.cat([part.response_lengths_B for part in parts]),
        rollout_logprobs_BS=torch.cat([widened(part.rollout_logprobs_BS) for part in parts]),
        group_ids_B=torch.cat([part.group_ids_B + first for part, first in zip(parts, num_groups, strict=False)]),
        finish_reasons=tuple(reason for part in parts for reason in part.finish_reasons),
        policy_version=version,
    )


def take_groups(rollouts: RolloutBatch, groups: Sequence[int]) -> RolloutBatch:
    """The samples of some prompts, in the batch's order, numbered anew from 0; padding no row needs is cut off.

    Args:
        rollouts: the whole batch.
        groups: ids to keep, ascending.
    """
    rows_B = rows_of_groups(rollouts, groups).nonzero().flatten()
    width = int(rollouts.lengths_B[rows_B].max())
    return RolloutBatch(
        tokens_BS=rollouts.tokens_BS[rows_B, :width],
        prompt_lengths_B=rollouts.prompt_lengths_B[rows_B],
        response_lengths_B=rollouts.response_lengths_B[rows_B],
        rollout_logprobs_BS=rollouts.rollout_logprobs_BS[rows_B, :width],
        group_ids_B=torch.searchsorted(torch.tensor(groups), rollouts.group_ids_B[rows_B]),
        finish_reasons=tuple(rollouts.finish_reasons[row] for row in rows_B.tolist()),
        policy_version=rollouts.policy_version,
    )


def rows_of_groups(rollouts: RolloutBatch, groups: Sequence[int]) -> Tensor:
    """Bool ``[B]``, the samples of some prompts."""
    return torch.isin(rollouts.group_ids_B, torch.tensor(groups, dtype=torch.int64))
