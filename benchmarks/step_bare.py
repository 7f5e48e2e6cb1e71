"""vLLM's own loop on the engine of a run, with the requests of its last steps: what the rollout phase is compared with."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import torch.distributed as dist
from torch.distributed import ProcessGroup

from benchmarks.bare_rollout import BareRollout, request_parameters
from benchmarks.step_run import BARE_FILE
from megatron_rl.rollout.prompt_distribution import distribute_prompts
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.training.callbacks import TrainerCallback
from megatron_rl.training.ppo_trainer import StepResult
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.metrics import Metrics

_KEPT_STEPS = 2
Request = tuple[list[int], int]
"""Prompt ids and response length."""


class WatchedEngine(VllmEngine):
    """The product's engine, which a callback can find, and its vLLM engine without the product around it."""

    started: ClassVar[list[WatchedEngine]] = []

    def __init__(self, spec: EngineSpec, group: ProcessGroup) -> None:
        """Start it, and remember it."""
        super().__init__(spec, group)
        self.spec = spec
        self.started.append(self)

    def generate_alone(self, requests: Sequence[Request], temperature: float, num_stop_ids: int) -> float:
        """Seconds that vLLM's own loop and output processor take for ``requests``."""
        from vllm.inputs import tokens_input
        from vllm.v1.engine.output_processor import OutputProcessor

        if self.spec.frees_memory:
            self.wake(("kv_cache",))
        vllm, ours = self._engine, self._engine.output_processor
        vllm.output_processor = OutputProcessor(None, log_stats=False)
        parameters = [request_parameters(temperature, length, seed, num_stop_ids) for seed, (_, length) in enumerate(requests)]
        vllm.reset_prefix_cache()
        began = time.perf_counter()
        for index, (ids, _) in enumerate(requests):
            vllm.add_request(str(index), tokens_input(ids), parameters[index])
        while vllm.has_unfinished_requests():
            vllm.step()
        seconds = time.perf_counter() - began
        vllm.output_processor = ours
        return seconds


class SameRequests(TrainerCallback):
    """When training ends, lets each engine answer its requests of the last steps once more, by vLLM alone."""

    run_dir: ClassVar[Path]
    """Of the run; set by the worker."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._rollouts: deque[RolloutBatch] = deque(maxlen=_KEPT_STEPS)

    def on_step_end(self, step: int, result: StepResult) -> Metrics:
        """Keep the step's rollouts."""
        self._rollouts.append(result.rollouts)
        return {}

    def on_train_end(self, last_step: int) -> None:
        """Measure, and write what the first engine took."""
        engine = WatchedEngine.started[-1]
        layout, rank = engine.spec.layout, dist.get_rank()
        batches = [requests_of(rollouts, layout.data, layout.slot(rank)[0]) for rollouts in self._rollouts]
        seconds = [engine.generate_alone(batch, engine.spec.rollout.temperature, num_stop_ids=0) for batch in batches]
        tokens = [sum(length for _, length in batch) for batch in batches]
        if rank == 0:
            found = BareRollout(start_s=None, seconds=tuple(seconds), tokens=tuple(tokens))
            (self.run_dir / BARE_FILE).write_text(json.dumps(asdict(found)))


def requests_of(rollouts: RolloutBatch, num_engines: int, engine: int) -> list[Request]:
    """Requests that one engine answered in a rollout batch."""
    prompt_lengths, responses = rollouts.prompt_lengths_B.tolist(), rollouts.response_lengths_B.tolist()
    groups = rollouts.group_ids_B.tolist()
    by_prompt = dict(zip(groups, prompt_lengths, strict=True))
    share = set(distribute_prompts([by_prompt[group] for group in sorted(by_prompt)], num_engines)[engine])
    return [
        (rollouts.tokens_BS[row, : prompt_lengths[row]].tolist(), responses[row])
        for row, group in enumerate(groups)
        if group in share
    ]
