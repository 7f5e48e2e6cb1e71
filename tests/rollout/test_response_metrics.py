"""Length statistics."""

from __future__ import annotations

import pytest

from megatron_rl.rollout.generator import to_rollout_batch
from megatron_rl.rollout.outputs import Completion, PackedCompletions
from megatron_rl.rollout.response_metrics import imbalance_metrics, response_metrics
from megatron_rl.types.batches import FinishReason, RolloutBatch
from megatron_rl.types.metrics import to_floats
from megatron_rl.types.prompts import Prompt, PromptBatch


def _batch(*responses: tuple[int, FinishReason]) -> RolloutBatch:
    prompts = PromptBatch(
        prompts=tuple(Prompt(uid=str(i), token_ids=(1,) * (i + 1), text="", row={}) for i in range(len(responses))), epoch=0
    )
    answers = [
        Completion(token_ids=(3,) * length, logprobs=(0.0,) * length, finish_reason=reason) for length, reason in responses
    ]
    return to_rollout_batch(prompts, PackedCompletions.pack(answers), 0, pad_token_id=0)


def test_response_metrics_matches_hand_computed() -> None:
    found = to_floats(response_metrics(_batch((3, "stop"), (8, "stop"), (8, "length"))))
    assert found["response_length/mean"] == pytest.approx(19 / 3)
    assert (found["response_length/min"], found["response_length/max"]) == (3, 8)
    assert found["response_length/clip_ratio"] == pytest.approx(1 / 3)
    assert found["prompt_length/mean"] == 2
    assert found["rollout/generated_tokens"] == 19


def test_response_metrics_counts_no_clip_where_every_response_ended() -> None:
    assert to_floats(response_metrics(_batch((8, "stop"), (8, "stop"))))["response_length/clip_ratio"] == 0


def test_response_metrics_counts_aborted_and_empty() -> None:
    found = to_floats(response_metrics(_batch((0, "abort"), (2, "stop"))))
    assert (found["response/aborted_ratio"], found["response/num_empty"]) == (0.5, 1)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        pytest.param([[0, 1, 2]], 1.0, id="one_engine"),
        pytest.param([[0], [1, 2]], 2 * 16 / 19, id="uneven"),
        pytest.param([[0, 1, 2], []], 2.0, id="idle_engine"),
    ],
)
def test_imbalance_metrics_matches_hand_computed(shares: list[list[int]], expected: float) -> None:
    batch = _batch((3, "stop"), (8, "stop"), (8, "length"))
    assert to_floats(imbalance_metrics(batch, shares, 1))["rollout/engine_imbalance"] == pytest.approx(expected)
