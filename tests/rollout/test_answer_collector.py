"""Collecting sampled ids and log-probs, fed with the engine core's own outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from megatron_rl.rollout.answer_collector import Answer, AnswerCollector
from megatron_rl.rollout.outputs import Completion


class Reason:
    """As the engine core's: its text counts."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def output(core_id: str, ids: list[int], logprobs: list[float] | None = None, reason: str | None = None, shift: int = 0) -> Any:
    """With a candidate beside each sampled token, which must be ignored."""
    given = [-float(i) for i in ids] if logprobs is None else logprobs
    lists = SimpleNamespace(
        logprob_token_ids=np.array([[i + shift, 99] for i in ids]).reshape(-1, 2),
        logprobs=np.array([[value, -9.0] for value in given], dtype=np.float32).reshape(-1, 2),
    )
    return SimpleNamespace(
        request_id=core_id, new_token_ids=ids, new_logprobs=lists, finish_reason=None if reason is None else Reason(reason)
    )


def collector(*names: str) -> AnswerCollector:
    found = AnswerCollector()
    for name in names:
        request, _, sample = name.partition("/")
        found.add_request(SimpleNamespace(request_id=f"core {name}", external_req_id=request), None, None, int(sample))
    return found


def test_tokens_of_several_iterations_become_one_completion() -> None:
    found = collector("0/0", "0/1", "1/0")
    assert (
        found.process_outputs([output("core 0/0", [4]), output("core 0/1", [5]), output("core 1/0", [])]).request_outputs == []
    )
    ended = found.process_outputs([output("core 0/1", [6, 2], [-0.5, -0.25], "stop"), output("core 0/0", [7])]).request_outputs
    assert ended == [
        Answer(
            request="0",
            sample=1,
            completion=Completion(token_ids=(5, 6, 2), logprobs=(-5.0, -0.5, -0.25), finish_reason="stop"),
        )
    ]
    assert found.get_num_unfinished_requests() == 2
    (last,) = found.process_outputs([output("core 0/0", [8], reason="length")]).request_outputs
    assert (last.sample, last.completion.token_ids, last.completion.finish_reason) == (0, (4, 7, 8), "length")


@pytest.mark.parametrize("reason", ["abort", "error", "repetition"])
def test_sample_that_failed_is_empty(reason: str) -> None:
    found = collector("0/0")
    (ended,) = found.process_outputs([output("core 0/0", [4], reason=reason)]).request_outputs
    assert ended.completion == Completion(token_ids=(), logprobs=(), finish_reason="abort")
    assert not found.has_unfinished_requests()


def test_aborted_requests_are_forgotten_with_all_their_samples() -> None:
    found = collector("0/0", "0/1", "1/0")
    assert found.abort_requests(["0", "7"], internal=False) == ["core 0/0", "core 0/1"]
    assert found.process_outputs([output("core 0/0", [4], reason="stop")]).request_outputs == []
    assert found.get_num_unfinished_requests() == 1


def test_log_prob_of_another_token_is_noticed() -> None:
    with pytest.raises(AssertionError, match="one log-prob per sampled id"):
        collector("0/0").process_outputs([output("core 0/0", [4], shift=1)])
