"""Many real training runs, one after the other, on the same ranks: they share the engine, whose start takes longest."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from megatron_rl.config.run import RunConfig
from megatron_rl.resharding.executor import ReshardExecutor, TransferStats
from megatron_rl.rollout import vllm_engine
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.runtime.random_states import rng_state
from megatron_rl.training import rl, rollout_assembly
from megatron_rl.training.job import Job
from megatron_rl.training.loop import LoopParts


@dataclass(frozen=True)
class Run:
    """One call of ``train``."""

    config: RunConfig
    run_dir: Path
    fault: str | None = None
    """One of ``FAULTS``, present during this run only."""


@dataclass(frozen=True)
class Ending:
    """What one run left on one rank."""

    code: int
    state: dict[str, str]
    """Digests of weights, moments, schedule, KL coefficient, data position and generators."""
    warnings: list[str]
    start_weights: str


class _SharedEngine:
    """Stands where the engine's class does and gives every run the engine of the first."""

    def __init__(self) -> None:
        self.engine: VllmEngine | None = None

    def __call__(self, spec: EngineSpec, group: ProcessGroup) -> VllmEngine:
        if self.engine is None:
            self.engine = VllmEngine(spec, group)
        self.engine.wake()  # A run may leave it half asleep.
        return self.engine


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def train_all(runs: dict[str, Run]) -> dict[str, Ending]:
    """Carry out all runs in order."""
    shared = _SharedEngine()
    rollout_assembly.VllmEngine = shared  # type: ignore[assignment, misc]
    return {name: _train(run, shared) for name, run in runs.items()}


def _train(run: Run, shared: _SharedEngine) -> Ending:
    built: list[tuple[LoopParts, str]] = []
    build = rl._build

    def capture(*args: Any) -> LoopParts:
        parts = build(*args)
        _bring_back(parts)
        built.append((parts, _weights(parts)))
        if run.fault is not None:
            FAULTS[run.fault](shared.engine)
        return parts

    messages = _Warnings()
    logging.getLogger("megatron_rl").addHandler(messages)
    original = ReshardExecutor.run
    rl._build = capture
    if dist.get_rank() == 0:
        run.run_dir.mkdir(parents=True)
    try:
        code = rl.train(Job.join(run.config, run.run_dir))
    finally:
        rl._build, ReshardExecutor.run = build, original  # type: ignore[method-assign]
        logging.getLogger("megatron_rl").removeHandler(messages)
    ((parts, start),) = built
    _bring_back(parts)
    return Ending(code, _state(parts), messages.texts, start)


def _bring_back(parts: LoopParts) -> None:
    """Whatever may have left the device is read below."""
    for held in parts.phases.memory._holdings:
        if not held.on_device:
            held.movable.load()
            held.on_device = True


def _skip_one_sync(engine: VllmEngine | None) -> None:
    """The fourth sync moves nothing and reports success."""
    run, calls = ReshardExecutor.run, []

    def lazy(self: ReshardExecutor) -> TransferStats:
        calls.append(calls[-1] if len(calls) == 3 else run(self))
        return calls[-1]

    ReshardExecutor.run = lazy  # type: ignore[method-assign]


def _perturb_one_layer(engine: VllmEngine | None) -> None:
    """Every sync is followed by an error of 1 % in one layer."""
    run = ReshardExecutor.run

    def inexact(self: ReshardExecutor) -> TransferStats:
        stats = run(self)
        assert engine is not None
        for name, parameter in engine.parameters().items():
            if ".layers.1." in name:
                parameter.mul_(1.01)
        return stats

    ReshardExecutor.run = inexact  # type: ignore[method-assign]


def _keep_prefix_cache(engine: VllmEngine | None) -> None:
    """The engine claims to have dropped its prefix cache. Irreparable: for the last run."""
    assert engine is not None
    vllm_engine.drop_prefix_cache = lambda engine: True


FAULTS: dict[str, Callable[[VllmEngine | None], None]] = {
    "skip_one_sync": _skip_one_sync,
    "perturb_one_layer": _perturb_one_layer,
    "keep_prefix_cache": _keep_prefix_cache,
}


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        # A copy: memory that NumPy has seen could not leave any more.
        hasher.update(name.encode() + tensors[name].detach().clone().contiguous().numpy().tobytes())
    return hasher.hexdigest()


def _weights(parts: LoopParts) -> str:
    return _digest({f"{r}.{n}": p for r, role in parts.state.roles.items() for n, p in role.parameters.items()})


def _state(parts: LoopParts) -> dict[str, str]:
    """Read from the live objects, not from a checkpoint, which could miss the same thing twice."""
    state = {"weights": _weights(parts)}
    for name, role in parts.state.roles.items():
        assert role.optimizer is not None
        moments = _moments(role.optimizer.megatron)
        assert moments
        state[f"{name} moments"] = _digest(moments)
        state[f"{name} schedule"] = repr(sorted(role.optimizer.state_dict().items()))
    state["kl"] = repr(parts.state.kl_controller.state_dict())
    state["stream"] = repr(parts.stream.state_dict())
    state["generators"] = hashlib.sha256(repr(rng_state()).encode()).hexdigest()
    return state


def _moments(optimizer: Any) -> dict[str, torch.Tensor]:
    parts = optimizer.chained_optimizers if "chained_optimizers" in vars(optimizer) else [optimizer]
    found = {}
    for part, adam in enumerate(part.optimizer for part in parts):
        for index, parameter in enumerate(p for group in adam.param_groups for p in group["params"]):
            for key, value in adam.state[parameter].items():
                found[f"{part}.{index}.{key}"] = torch.as_tensor(value)
    return found
