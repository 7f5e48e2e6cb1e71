"""Rows of rollout batches."""

from __future__ import annotations

import pytest
import torch

from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.rollout_rows import join_rollouts, rows_of_groups, take_groups


def _rollouts(tokens: list[list[int]], groups: list[int], version: int = 1) -> RolloutBatch:
    width = max(map(len, tokens))
    tokens_BS = torch.tensor([row + [9] * (width - len(row)) for row in tokens])
    return RolloutBatch(
        tokens_BS=tokens_BS,
        prompt_lengths_B=torch.ones(len(tokens), dtype=torch.int64),
        response_lengths_B=torch.tensor([len(row) - 1 for row in tokens]),
        rollout_logprobs_BS=-tokens_BS.float(),
        group_ids_B=torch.tensor(groups),
        finish_reasons=tuple("stop" if len(row) > 1 else "abort" for row in tokens),
        policy_version=version,
    )


def test_join_rollouts_matches_hand_computed() -> None:
    joined = join_rollouts([_rollouts([[1, 2], [1]], [0, 0]), _rollouts([[3, 4, 5], [6, 7]], [0, 1])])
    assert joined.tokens_BS.tolist() == [[1, 2, 0], [1, 9, 0], [3, 4, 5], [6, 7, 9]]
    assert joined.rollout_logprobs_BS[0].tolist() == [-1, -2, 0]
    assert joined.group_ids_B.tolist() == [0, 0, 1, 2]
    assert joined.lengths_B.tolist() == [2, 1, 3, 2]
    assert joined.finish_reasons == ("stop", "abort", "stop", "stop")


def test_join_rollouts_rejects_two_policies() -> None:
    with pytest.raises(ValueError, match="too many values"):
        join_rollouts([_rollouts([[1, 2]], [0]), _rollouts([[1, 2]], [0], version=2)])


def test_take_groups_matches_hand_computed() -> None:
    rollouts = _rollouts([[1, 2], [1], [3, 4, 5], [3, 4], [6, 7], [6, 8]], [0, 0, 1, 1, 2, 2])
    taken = take_groups(rollouts, [0, 2])
    assert taken.tokens_BS.tolist() == [[1, 2], [1, 9], [6, 7], [6, 8]]
    assert taken.rollout_logprobs_BS.tolist() == [[-1, -2], [-1, -9], [-6, -7], [-6, -8]]
    assert taken.group_ids_B.tolist() == [0, 0, 1, 1]
    assert taken.response_lengths_B.tolist() == [1, 0, 1, 1]
    assert taken.finish_reasons == ("stop", "abort", "stop", "stop")
    assert rows_of_groups(rollouts, [0, 2]).tolist() == [True, True, False, False, True, True]
