"""Every way to lay roles out on the given cards: which are possible, which fit, how fast each is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.tensor_degrees import divisors, rollout_tensor_degrees, training_tensor_degrees
from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.coefficients import Coefficients, process_memory
from megatron_rl.estimator.deployment import Deployment, EngineSetup, Recompute, RoleName, RoleSetup, Workload
from megatron_rl.estimator.engine_memory import sequence_kv_bytes, wanted_kv_bytes
from megatron_rl.estimator.memory import phase_memory
from megatron_rl.estimator.memory_part import MemoryPart, PhaseMemory
from megatron_rl.estimator.offloading import (
    OFFLOADS,
    TRAINABLE_OFFLOADS,
    Offload,
    offload_of,
    offloaded_engine,
    offloaded_role,
)
from megatron_rl.estimator.step_time import TimePart, num_micro_batches, step_parts
from megatron_rl.estimator.sync_bytes import planned_sync
from megatron_rl.parallel.layout import ParallelLayout

SMALLER_MICRO_BATCHES = (8192, 4096)
"""Tokens; tried beside the configured size, and beside one longest sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Cards of one kind and who lives on them. Example: four H100 with the actor, the reference and the engine."""

    gpu: Gpu
    num_gpus: int
    roles: tuple[RoleName, ...]

    @property
    def has_engine(self) -> bool:
        """The engine lives with the actor."""
        return "actor" in self.roles


@dataclass(frozen=True, slots=True)
class RoleDegrees:
    """A layout that a role keeps while the actor's is searched. Example: ``RoleDegrees(tensor=1, pipeline=2)``."""

    tensor: int
    pipeline: int

    def layout(self, num_gpus: int) -> ParallelLayout | None:
        """On so many cards; None where they do not divide."""
        block = self.tensor * self.pipeline
        if num_gpus % block:
            return None
        return ParallelLayout(
            tensor=self.tensor, pipeline=self.pipeline, data=num_gpus // block, sequence_parallel=self.tensor > 1
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """What the user fixed; None = to be searched, or for critic and reference that they take the actor's layout."""

    tensor: int | None = None
    pipeline: int | None = None
    rollout_tensor: int | None = None
    recompute: Recompute | None = None
    micro_batch_tokens: int | None = None
    kv_cache_bytes: int | None = None
    critic: RoleDegrees | None = None
    reference: RoleDegrees | None = None
    offload: Offload | None = None


PLAIN_ROLE = RoleSetup(name="actor", layout=ParallelLayout(), micro_batch_tokens=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings that the search takes over from the configuration."""

    micro_batch_tokens: int = 16384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    prefix_caching: bool = True
    aliased: bool = True
    sync_budget_bytes: int = 256 * 2**20
    role: RoleSetup = PLAIN_ROLE
    """Precision and loss, as configured for the actor and taken for the critic too."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A layout that cannot be. Example: ``Rejection("TP3", "3 does not divide the 4 key/value heads")``."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One deployment on one pool, with its price in memory and seconds."""

    pool: Pool
    deployment: Deployment
    memory: tuple[PhaseMemory, ...]
    times: tuple[TimePart, ...]
    usable_bytes: int
    """The card without what is kept free."""

    @property
    def peak(self) -> PhaseMemory:
        """The phase that needs most."""
        return max(self.memory, key=lambda phase: phase.total_bytes)

    @property
    def fits(self) -> bool:
        """Whether every phase fits."""
        return self.peak.total_bytes <= self.usable_bytes

    @property
    def step_s(self) -> float:
        """Seconds of this pool's own work."""
        return sum(part.seconds for part in self.times)

    @property
    def untrainable(self) -> str | None:
        """Why this version cannot run it; None = it can."""
        deployment = self.deployment
        if deployment.model.moe is not None or deployment.model.mla is not None:
            return "mixture-of-experts and latent attention are not trained by this version"
        if offload_of(deployment) not in TRAINABLE_OFFLOADS:
            return f"offload={offload_of(deployment)} is not part of this version"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Finds the strategies of one pool."""

    model: ModelConfig
    workload: Workload
    pool: Pool
    coefficients: Coefficients
    pins: Pins = Pins()
    limits: Limits = Limits()
    offloads: tuple[Offload, ...] = OFFLOADS

    def run(self) -> tuple[list[Strategy], list[Rejection]]:
        """The best variant of each layout and offload, and the layouts that cannot be."""
        found: list[Strategy] = []
        rejected: list[Rejection] = []
        for layout in self._layouts(rejected):
            for offload in self.offloads if self.pins.offload is None else (self.pins.offload,):
                leanest = self._leanest(layout, offload)
                fitting = [v for v in self._variants(layout, offload) if v.fits] if leanest.fits else []
                found.append(min(fitting, key=lambda s: s.step_s, default=leanest))
        return found, rejected

    def _leanest(self, layout: ParallelLayout, offload: Offload) -> Strategy:
        """The variant with the least memory; where it does not fit, none does."""
        rollouts, recomputes, sizes = self._choices()
        variants = [self._strategy(layout, offload, tensor, recomputes[-1], sizes[-1]) for tensor in rollouts]
        return min(variants, key=lambda variant: variant.peak.total_bytes)

    def _variants(self, layout: ParallelLayout, offload: Offload) -> Iterator[Strategy]:
        """Engine degrees and recomputations with every micro-batch down to the largest that leaves the cache its room.

        A smaller one trains no faster, and only a cache that is short of memory could gain from it.
        """
        rollouts, recomputes, sizes = self._choices()
        for rollout_tensor, recompute in product(rollouts, recomputes):
            for size in sizes:
                variant = self._strategy(layout, offload, rollout_tensor, recompute, size)
                yield variant
                if variant.fits and not self._squeezed(variant):
                    break

    def _squeezed(self, strategy: Strategy) -> bool:
        """Whether the KV cache got less than it wants, so that fewer sequences run at once."""
        engine = strategy.deployment.engine
        if engine is None or self.pins.kv_cache_bytes is not None:
            return False
        return engine.kv_cache_bytes < wanted_kv_bytes(self.model, self.workload, engine, strategy.deployment.weight_bytes)

    def _layouts(self, rejected: list[Rejection]) -> Iterator[ParallelLayout]:
        model, gpus = self.model, self.pool.num_gpus
        legal = training_tensor_degrees(model)
        for tensor in divisors(gpus) if self.pins.tensor is None else [self.pins.tensor]:
            if gpus % tensor:
                rejected.append(Rejection(f"TP{tensor}", f"does not divide {gpus} GPUs"))
            elif tensor not in legal:
                rejected.append(Rejection(f"TP{tensor}", f"does not cut the heads and MLP of {model.name}; legal: {legal}"))
            elif tensor > self.pool.gpu.gpus_per_node:
                rejected.append(Rejection(f"TP{tensor}", f"leaves the node of {self.pool.gpu.gpus_per_node} GPUs"))
            else:
                yield from self._pipelines(tensor, rejected)

    def _pipelines(self, tensor: int, rejected: list[Rejection]) -> Iterator[ParallelLayout]:
        model, rest = self.model, self.pool.num_gpus // tensor
        for pipeline in divisors(rest) if self.pins.pipeline is None else [self.pins.pipeline]:
            data = rest // pipeline
            label = f"TP{tensor} PP{pipeline}"
            if rest % pipeline:
                rejected.append(Rejection(label, f"does not divide {self.pool.num_gpus} GPUs"))
            elif model.num_layers % pipeline:
                rejected.append(Rejection(label, f"{pipeline} stages do not divide {model.num_layers} layers"))
            elif data > self.workload.samples_per_step:
                rejected.append(Rejection(f"{label} DP{data}", f"only {self.workload.samples_per_step} samples a step"))
            else:
                experts = _expert_degree(model, tensor * data)
                yield ParallelLayout(
                    tensor=tensor,
                    pipeline=pipeline,
                    data=data,
                    expert=experts,
                    expert_tensor=1 if experts > 1 else None,
                    sequence_parallel=tensor > 1,
                )

    def _choices(self) -> tuple[list[int], list[Recompute], list[int]]:
        """Engine degrees, recomputations, micro-batch tokens (largest first)."""
        pins, limit, longest = self.pins, self.limits.micro_batch_tokens, self.workload.longest_sample_tokens
        most = min(self.pool.num_gpus, self.pool.gpu.gpus_per_node)
        rollouts = [t for t in rollout_tensor_degrees(self.model) if t <= most and self.pool.num_gpus % t == 0]
        sizes = {size for size in (limit, *SMALLER_MICRO_BATCHES, longest) if longest <= size <= limit} or {longest}
        if pins.rollout_tensor is not None or not self.pool.has_engine:
            rollouts = [pins.rollout_tensor or 1]
        recomputes: list[Recompute] = ["none", "full"] if pins.recompute is None else [pins.recompute]
        return rollouts, recomputes, [pins.micro_batch_tokens] if pins.micro_batch_tokens else sorted(sizes, reverse=True)

    def _strategy(
        self, layout: ParallelLayout, offload: Offload, rollout_tensor: int, recompute: Recompute, micro_batch_tokens: int
    ) -> Strategy:
        roles = tuple(
            offloaded_role(self._role(name, layout, recompute, micro_batch_tokens), offload) for name in self.pool.roles
        )
        deployment = Deployment(
            model=self.model,
            roles=roles,
            engine=self._engine(rollout_tensor, offload) if self.pool.has_engine else None,
            sync_budget_bytes=self.limits.sync_budget_bytes,
        )
        usable = usable_bytes(self.pool.gpu, self.coefficients)
        deployment, memory = self._with_cache(deployment, usable)
        times = self.times(deployment, plan=False)
        return Strategy(pool=self.pool, deployment=deployment, memory=memory, times=times, usable_bytes=usable)

    def _role(self, name: RoleName, layout: ParallelLayout, recompute: Recompute, micro_batch_tokens: int) -> RoleSetup:
        own = {"actor": None, "critic": self.pins.critic, "reference": self.pins.reference}[name]
        found = None if own is None else own.layout(self.pool.num_gpus)
        return replace(
            self.limits.role,
            name=name,
            layout=found or layout,
            micro_batch_tokens=min(micro_batch_tokens, self._share_tokens(found or layout)),
            recompute=recompute,
            trained=name != "reference",
        )

    def _share_tokens(self, layout: ParallelLayout) -> int:
        """Most tokens one data-parallel rank has in an optimizer step: no micro-batch gets larger."""
        work = self.workload
        samples = -(-work.samples_per_step * work.actor_passes // work.actor_optimizer_steps)
        return -(-samples // layout.data) * work.longest_sample_tokens

    def _engine(self, tensor: int, offload: Offload) -> EngineSetup:
        engine = EngineSetup(
            tensor=tensor,
            data=self.pool.num_gpus // tensor,
            max_num_seqs=self.limits.max_num_seqs,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            kv_cache_bytes=0,
            prefix_caching=self.limits.prefix_caching,
            aliased=self.limits.aliased,
        )
        return offloaded_engine(engine, offload)

    def _with_cache(self, deployment: Deployment, usable: int) -> tuple[Deployment, tuple[PhaseMemory, ...]]:
        """Give the KV cache what it wants or what is left, at least one longest sample."""
        memory = self._memory(deployment)
        engine = deployment.engine
        if engine is None:
            return deployment, memory
        wanted = wanted_kv_bytes(self.model, self.workload, engine, deployment.weight_bytes)
        least = sequence_kv_bytes(self.model, self.workload, engine.tensor, deployment.weight_bytes)
        crowded = [phase for phase in memory if not engine.sleeps or phase.phase == "rollout"]
        left = usable - max(phase.total_bytes for phase in crowded)
        size = self.pins.kv_cache_bytes or max(least, min(wanted, left))
        held = MemoryPart("engine", "KV cache", size)
        memory = tuple(replace(p, parts=(*p.parts, held)) if p in crowded else p for p in memory)
        return replace(deployment, engine=replace(engine, kv_cache_bytes=size)), memory

    def _memory(self, deployment: Deployment) -> tuple[PhaseMemory, ...]:
        role = deployment.roles[0]
        count = num_micro_batches(role, self.workload, self.workload.actor_optimizer_steps, self.workload.actor_passes)
        return phase_memory(deployment, process_memory(self.coefficients), num_micro_batches=count)

    def times(self, deployment: Deployment, *, plan: bool) -> tuple[TimePart, ...]:
        """Seconds of a step; ``plan`` asks the planner for the transfer's bytes."""
        sync = planned_sync(deployment, self.pool.gpu.gpus_per_node, plan=plan)
        return step_parts(deployment, self.workload, self.pool.gpu, self.coefficients, sync)


def usable_bytes(gpu: Gpu, known: Coefficients) -> int:
    """The card without what is kept free."""
    return round(gpu.memory_bytes * (1 - known.headroom_frac.value))


def _expert_degree(model: ModelConfig, block: int) -> int:
    """Most expert-parallel ranks that a block of tensor * data ranks allows."""
    if model.moe is None:
        return 1
    return max(degree for degree in divisors(block) if model.moe.num_experts % degree == 0)
