"""Actor and vLLM engine in one process: shared weights, copied weights, and what most frameworks do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.reshard_figures import Figure, Timing, time_runs
from megatron_rl.config.run import RunConfig
from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.ops import prepare_strided_copies
from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size
from megatron_rl.resharding.aliasing import with_aliases
from megatron_rl.resharding.executor import ReshardExecutor, aliased_runs
from megatron_rl.resharding.fabric import CPU_HOST, H200_NODE, predict_seconds
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.spec import RankFragments
from megatron_rl.resharding.verify import fragment_view
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.weight_sync import WeightSync
from megatron_rl.weights.hf_config import hf_config
from megatron_rl.weights.names import logical_tensors

_GIB = 2**30


class EngineCase:
    """One model on one rank, trained at TP1 and sampled at TP1."""

    def __init__(self, config: RunConfig, folder: Path, *, trained: bool) -> None:
        """Build the actor, then the engine on its weights; ``trained``: with gradients, optimizer and its buffers."""
        self.job = job = Job.join(config, folder)
        assert job.world_size == 1, "the engine case is for one rank; use --pairs for more"
        model, dtype = config.model, job.platform.dtype
        self.actor = MegatronRole.build(
            model, TrainedRoleConfig(), ParallelLayout(), job.registry, job.platform, frozen=not trained
        )
        stored = megatron_layout(model, ParallelLayout(), padded_vocab_size(model.vocab_size, 1))
        self.fragments: RankFragments = stored(0)
        self.plan: ReshardPlan = plan_reshard(
            logical_tensors(model),
            stored,
            [0],
            vllm_rules_layout(model, job.rollout_layout),
            [0],
            itemsize=dtype.itemsize,
            budget_bytes=config.weight_sync.budget_bytes,
        )
        self.aliased = with_aliases(self.plan)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(hf_config(model, dtype=str(dtype).removeprefix("torch."))))
        spec = EngineSpec(
            model_folder=folder,
            rollout=config.rollout,
            layout=job.rollout_layout,
            device=job.platform.device,
            dtype=dtype,
            max_model_len=256,
            shared=aliased_runs(self.aliased, 0, self.actor.parameters),
        )
        before = self._allocated()
        self.engine = VllmEngine(spec, job.host_group)
        self.held_by_start_bytes = self._allocated() - before

    def measure(self, repeats: int) -> Iterator[Figure]:
        """Shared weights first, as long as there is no second copy of them."""
        parameters = self.engine.parameters()
        budget = self.job.config.weight_sync.budget_bytes
        executor = ReshardExecutor(self.aliased, 0, self.actor.parameters, parameters, None, budget)
        sync = WeightSync([executor], self.aliased, self.engine)
        device, cache_gib = self.job.platform.device, self.job.config.rollout.kv_cache_gib
        assert cache_gib is not None
        shared = {parameters[name].data_ptr() for name in self.aliased.aliases[0]}
        own = sum(p.numel() * p.element_size() for p in parameters.values() if p.data_ptr() not in shared)
        note = f"weights of the engine's own: {own} bytes; allocated by its start: {self.held_by_start_bytes / _GIB:.3f} GiB"
        note += f" with {cache_gib:g} GiB of KV cache"
        yield self._figure("shared weights, transfer", time_runs(executor.run, device, repeats), self.aliased, note=note)
        push = partial(sync.push, 0)
        note = "the transfer, nothing cached: as after a sleep"
        yield self._figure("shared weights, whole push", time_runs(push, device, repeats), self.aliased, note=note)
        note = f"before the update, the engine forgets {self._rollout()} of {self._pool().num_gpu_blocks} cached blocks"
        timing = time_runs(sync.invalidate, device, repeats, before=lambda: (push(), self._rollout()))
        yield self._figure("shared weights, end of a rollout", timing, self.aliased, note=note)
        push()
        timing = time_runs(push, device, repeats, before=lambda: (self._rollout(), sync.invalidate()))
        yield self._figure("shared weights, push after a rollout", timing, self.aliased, note="after that and an update")
        yield from self._copied(parameters, repeats)

    def _rollout(self) -> int:
        """Fill the prefix cache with 256 prompts of 255 tokens; cached blocks."""
        prompts = [[(7 * i + 3 * j) % 200 + 3 for j in range(255)] for i in range(256)]
        settings = SamplingSettings(max_new_tokens=1, temperature=1.0, ignore_eos=True)
        self.engine.generate(prompts, settings, range(len(prompts)))
        return len(self._pool().cached_block_hash_to_block)

    def _pool(self) -> Any:
        return self.engine._engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool

    def _copied(self, parameters: dict[str, Tensor], repeats: int) -> Iterator[Figure]:
        device, expected = self.job.platform.device, dict(parameters)
        storages = {parameter.data_ptr(): torch.zeros_like(parameter) for parameter in parameters.values()}
        own = {name: storages[parameter.data_ptr()] for name, parameter in parameters.items()}
        executor = ReshardExecutor(self.plan, 0, self.actor.parameters, own, None, self.job.config.weight_sync.budget_bytes)
        yield self._checked("copied by the plan", time_runs(executor.run, device, repeats), own, expected)
        _forget(own)
        pairs = [
            (
                _strided(self.actor.parameters[p.source], p.shape, p.source_strides, p.source_offset),
                _strided(own[p.destination], p.shape, p.destination_strides, p.destination_offset),
            )
            for p in self.plan.copies[0]
        ]
        kernel = prepare_strided_copies([s for s, _ in pairs], [d for _, d in pairs])
        yield self._checked("copied by the one-launch kernel", time_runs(kernel.run, device, repeats), own, expected)
        _forget(own)
        sources, destinations = [s for s, _ in pairs], [d for _, d in pairs]
        run = partial(torch._foreach_copy_, destinations, sources)
        yield self._checked("copied by torch's batched copy", time_runs(run, device, repeats), own, expected)
        _forget(own)
        with self._engine_on(own) as model:
            yield self._checked(
                "exported whole + load_weights", time_runs(lambda: self._load(model), device, 3, 1), own, expected
            )

    def _load(self, model: Any) -> None:
        """Whole tensors under their checkpoint names, read by the engine's own loader."""
        held = ((f.tensor, fragment_view(f, self.actor.parameters[f.buffer])) for f in self.fragments)
        model.load_weights(held)

    @contextmanager
    def _engine_on(self, own: dict[str, Tensor]) -> Iterator[Any]:
        """The engine's model on weights of its own for a while. Nothing may generate meanwhile."""
        model = self.engine._model()
        parameters = dict(model.named_parameters(remove_duplicate=False))
        home = {name: parameter.data for name, parameter in parameters.items()}
        for name, parameter in parameters.items():
            parameter.data = own[name]
        try:
            yield model
        finally:
            for name, parameter in parameters.items():
                parameter.data = home[name]

    def _checked(self, way: str, timing: Timing, own: dict[str, Tensor], expected: dict[str, Tensor]) -> Figure:
        equal = all(torch.equal(own[name], expected[name]) for name in expected)
        return self._figure(way, timing, self.plan, correct=equal)

    def _figure(self, way: str, timing: Timing, plan: ReshardPlan, **fields: Any) -> Figure:
        cost = plan.cost(0)
        fabric = H200_NODE if self.job.platform.device.type == "cuda" else CPU_HOST
        return Figure(
            model=self.job.config.model.name,
            case="tp1_to_tp1, actor and engine",
            way=way,
            seconds=timing.seconds,
            low_s=timing.low_s,
            high_s=timing.high_s,
            peak_bytes=timing.peak_bytes,
            aliased_bytes=cost.aliased_bytes,
            copied_bytes=cost.copied_bytes,
            bound_bytes=cost.bound_bytes,
            predicted_s=None if "load_weights" in way else predict_seconds(plan, fabric),
            **fields,
        )

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.job.platform.device.type == "cuda" else 0


def _forget(tensors: dict[str, Tensor]) -> None:
    for tensor in tensors.values():
        tensor.zero_()


def _strided(tensor: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
    return tensor.detach().as_strided(shape, strides, tensor.storage_offset() + offset)
