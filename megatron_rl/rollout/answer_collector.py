"""Collects what vLLM's engine core samples, with as little work per token as possible.

vLLM's own output processor prepares for every token what a server may be asked for: text, ranks, candidates, streams. Training
wants ids and log-probs, and the engine core waits for this in the same process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from megatron_rl.rollout.outputs import Completion
from megatron_rl.types.batches import FinishReason

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest

_FINISH_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}
"""The engine's word -> ours; anything else is an aborted sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished response."""

    request: str
    """Name the request was added under."""
    sample: int
    """Which of the request's samples this is, from 0."""
    completion: Completion


@dataclass(frozen=True, slots=True)
class Processed:
    """What one engine iteration led to, by vLLM's names."""

    request_outputs: list[Answer]
    reqs_to_abort: Collection[str] = ()


@dataclass(slots=True)
class _Running:
    request: str
    sample: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class AnswerCollector:
    """Stands where an ``LLMEngine`` has its ``output_processor``, and answers the calls it makes to that.

    Every request must ask for the log-prob of the sampled token and for nothing else.
    """

    def __init__(self) -> None:
        """Nothing is running."""
        self._running: dict[str, _Running] = {}

    def add_request(
        self, request: EngineCoreRequest, prompt: str | None, parent_req: object, request_index: int, queue: None = None
    ) -> None:
        """A request, or one sample of it, goes to the engine core."""
        assert request.external_req_id is not None
        self._running[request.request_id] = _Running(request.external_req_id, request_index)

    def process_outputs(
        self,
        engine_core_outputs: Iterable[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: None = None,
    ) -> Processed:
        """Take an iteration's tokens; returns the responses that ended with it."""
        ended = []
        for output in engine_core_outputs:
            running = self._running.get(output.request_id)
            if running is None:  # aborted while the iteration ran
                continue
            if output.new_token_ids:
                logprobs = output.new_logprobs
                assert logprobs is not None and logprobs.logprob_token_ids[:, 0].tolist() == output.new_token_ids, (
                    "one log-prob per sampled id"
                )
                running.token_ids += output.new_token_ids
                running.logprobs += logprobs.logprobs[:, 0].tolist()
            if output.finish_reason is not None:
                del self._running[output.request_id]
                ended.append(_answer(running, _FINISH_REASONS.get(str(output.finish_reason), "abort")))
        return Processed(ended)

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        """Forget requests by the names they were added under; returns the engine core's names of what was running."""
        assert not internal
        names = set(request_ids)
        aborted = [core_id for core_id, running in self._running.items() if running.request in names]
        for core_id in aborted:
            del self._running[core_id]
        return aborted

    def has_unfinished_requests(self) -> bool:
        """Whether a response is on its way."""
        return bool(self._running)

    def get_num_unfinished_requests(self) -> int:
        """Responses on their way."""
        return len(self._running)

    def update_scheduler_stats(self, scheduler_stats: object) -> None:
        """No statistics are kept."""


def _answer(running: _Running, reason: FinishReason) -> Answer:
    kept = reason != "abort"
    completion = Completion(
        token_ids=tuple(running.token_ids) if kept else (),
        logprobs=tuple(running.logprobs) if kept else (),
        finish_reason=reason,
    )
    return Answer(request=running.request, sample=running.sample, completion=completion)
