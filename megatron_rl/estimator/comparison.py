"""Prediction beside measurement, for every stored record: what the page on the estimator shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megatron_rl.config.world import data_degree
from megatron_rl.estimator.calibration import MeasuredRun, engine_load, fit
from megatron_rl.estimator.coefficients import Coefficients
from megatron_rl.estimator.decode import rollout_s
from megatron_rl.estimator.deployment import Deployment, RoleSetup, Workload
from megatron_rl.estimator.measurements import PhaseName
from megatron_rl.estimator.step_time import pass_cost
from megatron_rl.parallel.layout import ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One phase of one record."""

    name: str
    phase: str
    use: str
    measured_s: float
    predicted_s: float

    @property
    def deviation_frac(self) -> float:
        """Of the prediction, relative to what was measured."""
        return self.predicted_s / self.measured_s - 1


def compare(runs: Sequence[MeasuredRun]) -> list[Comparison]:
    """Every phase this model has a formula for; coefficients as an estimate on that card would use them."""
    rows = []
    for run in runs:
        for phase, predicted_s in _predictions(run, fit(runs, run.gpu)):
            measured_s = run.record.phase_seconds[phase]
            row = Comparison(
                name=run.record.name, phase=phase, use=run.record.use, measured_s=measured_s, predicted_s=predicted_s
            )
            rows.append(row)
    return rows


def _predictions(run: MeasuredRun, coefficients: Coefficients) -> Iterator[tuple[PhaseName, float]]:
    if "rollout" in run.record.phase_seconds:
        yield "rollout", rollout_s(run.model, run.gpu, engine_load(run), coefficients)
    if "update_actor" in run.record.phase_seconds:
        yield "update_actor", _update_s(run, coefficients)


def _update_s(run: MeasuredRun, coefficients: Coefficients) -> float:
    """Forward and backward; the records do not say whether an optimizer step was timed, so none is added."""
    batch, degrees = run.record.batch, run.config.actor.parallel
    layout = ParallelLayout(tensor=degrees.tensor, pipeline=degrees.pipeline, data=data_degree(degrees, run.record.num_gpus))
    role = RoleSetup(name="actor", layout=layout, micro_batch_tokens=run.micro_batch_tokens)
    workload = Workload(
        prompts_per_step=batch.samples,
        samples_per_prompt=1,
        prompt_tokens=round(batch.prompt_tokens),
        response_tokens=round(batch.response_tokens),
        max_prompt_tokens=round(batch.prompt_tokens),
        max_response_tokens=round(batch.response_tokens),
        num_prompts=batch.samples,
        epochs=1,
        uses_critic=False,
        uses_reference=False,
    )
    deployment = Deployment(model=run.model, roles=(role,), engine=None)
    cost = pass_cost(deployment, role, workload, run.gpu, coefficients, training=True)
    return cost.compute_s + cost.messages_s + cost.bubble_s


def markdown(rows: Sequence[Comparison]) -> str:
    """The table of the page."""
    lines = ["| record | phase | use | measured s | model s | deviation |", "| --- | --- | --- | ---: | ---: | ---: |"]
    lines += [
        f"| {row.name} | {row.phase} | {row.use} | {row.measured_s:.3f} | {row.predicted_s:.3f} | {row.deviation_frac:+.1%} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
