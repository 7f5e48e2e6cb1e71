"""A stored measurement as what the model takes: a deployment, its work, and each phase's cost before coefficients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.catalogue import GIB, Gpu, find_gpu
from megatron_rl.estimator.coefficients import Coefficients, process_memory
from megatron_rl.estimator.configured import deployment_of
from megatron_rl.estimator.deployment import Deployment, Workload
from megatron_rl.estimator.measurements import Measurement, PhaseName
from megatron_rl.estimator.memory import phase_memory
from megatron_rl.estimator.memory_part import Phase, PhaseMemory
from megatron_rl.estimator.rank_memory import with_engine_sleep
from megatron_rl.estimator.recorded_settings import recorded_config
from megatron_rl.estimator.step_time import PhaseCost, num_micro_batches, step_costs
from megatron_rl.estimator.sync_bytes import planned_sync
from megatron_rl.estimator.workload import workload_of

MEMORY_PHASES: dict[PhaseName, Phase] = {
    "rollout": "rollout",
    "score_actor": "scoring",
    "score_reference": "scoring",
    "score_critic": "scoring",
    "update_critic": "update critic",
    "update_actor": "update actor",
    "sync": "switch-over",
}
"""Phase as it is measured -> phase of the memory model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A measurement with what its names mean."""

    record: Measurement
    config: RunConfig
    gpu: Gpu

    @property
    def deployment(self) -> Deployment:
        """Roles and engine, which sleeps if the run will have let it."""
        decided = with_engine_sleep(self.config, self.record.num_gpus, self.gpu.memory_bytes / GIB, self.gpu)
        return deployment_of(decided, self.record.num_gpus, on_gpu=True)

    @property
    def workload(self) -> Workload:
        """Of the measured steps, not of the configured maxima."""
        batch = self.record.batch
        return replace(
            workload_of(self.config),
            prompts_per_step=max(1, round(batch.samples / batch.samples_per_prompt)),
            samples_per_prompt=batch.samples_per_prompt,
            prompt_tokens=batch.prompt_tokens,
            response_tokens=batch.response_tokens,
            longest_response_tokens=batch.longest_response_tokens or batch.response_tokens,
            squared_tokens=batch.squared_tokens or None,
        )

    def costs(self, known: Coefficients) -> Iterator[tuple[PhaseName, list[PhaseCost]]]:
        """Phases that were measured and are modelled, with their components."""
        if not self.record.phase_seconds:
            return
        deployment = self.deployment
        sync = planned_sync(deployment, self.gpu.gpus_per_node, plan=False)
        costs = step_costs(deployment, self.workload, self.gpu, known, sync)
        measured = sorted((cost for cost in costs if cost.phase in self.record.phase_seconds), key=lambda cost: cost.phase)
        for phase, components in groupby(measured, key=lambda cost: cost.phase):
            yield phase, list(components)

    def peak_bytes(self, known: Coefficients) -> dict[Phase, int]:
        """Predicted peaks of torch's allocator, without what lies outside of it.

        Its statistics count the pool of a sleeping engine as if it were there.
        """
        deployment = self.deployment
        assert deployment.engine is not None, "a configured run has one"
        awake = replace(deployment, engine=replace(deployment.engine, sleeps=False))
        phases = self._phase_memory(awake, known)
        return {p.phase: sum(part.size_bytes for part in p.parts if part.role != "process") for p in phases}

    def card_bytes(self, known: Coefficients) -> float:
        """Predicted peak of the card.

        What is kept free of it is no part: the allocators of the measured runs held 0.2 % to 0.6 % more than their peak.
        """
        return max(phase.total_bytes for phase in self._phase_memory(self.deployment, known))

    def _phase_memory(self, deployment: Deployment, known: Coefficients) -> tuple[PhaseMemory, ...]:
        workload = self.workload
        count = num_micro_batches(deployment.roles[0], workload, workload.actor_optimizer_steps, workload.actor_passes)
        return phase_memory(deployment, process_memory(known), num_micro_batches=count)


def measured_runs(records: Sequence[Measurement]) -> list[MeasuredRun]:
    """Records with their configuration and their card looked up."""
    return [MeasuredRun(record=r, config=recorded_config(r), gpu=find_gpu(r.gpu, "measurement.gpu")) for r in records]
