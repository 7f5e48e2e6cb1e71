"""Prediction beside measurement, for every stored record: what the page on the estimator shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from megatron_rl.estimator.catalogue import GIB
from megatron_rl.estimator.coefficients import Coefficients
from megatron_rl.estimator.measured_run import MEMORY_PHASES, MeasuredRun
from megatron_rl.estimator.measurements import PhaseName


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One phase of one record."""

    name: str
    phase: PhaseName | Literal["peak", "card"]
    use: str
    quantity: Literal["s", "GiB"]
    measured: float
    predicted: float

    @property
    def deviation_frac(self) -> float:
        """Of the prediction, relative to what was measured."""
        return self.predicted / self.measured - 1


def compare(runs: Sequence[MeasuredRun], fitted: Mapping[str, Coefficients]) -> list[Comparison]:
    """Seconds and peaks of every record; coefficients as an estimate on that card would use them."""
    rows: list[Comparison] = []
    for run in runs:
        known = fitted.get(run.gpu.name, Coefficients())
        rows += [*_seconds(run, known), *_peaks(run, known)]
    return rows


def _seconds(run: MeasuredRun, known: Coefficients) -> Iterator[Comparison]:
    for phase, costs in run.costs(known):
        yield Comparison(
            name=run.record.name,
            phase=phase,
            use=run.record.use,
            quantity="s",
            measured=run.record.phase_seconds[phase],
            predicted=sum(cost.seconds(run.gpu, known) for cost in costs),
        )


def _peaks(run: MeasuredRun, known: Coefficients) -> Iterator[Comparison]:
    if not run.record.peak_memory_gib:
        return
    peaks = run.peak_bytes(known)
    predicted = {phase: peaks[MEMORY_PHASES[phase]] / GIB for phase in run.record.peak_memory_gib if phase in MEMORY_PHASES}
    shown: list[tuple[PhaseName | Literal["peak", "card"], float, float]] = [
        (phase, run.record.peak_memory_gib[phase], predicted[phase])
        for phase in ("rollout", "score_actor", "update_critic", "update_actor")
        if phase in predicted
    ]
    shown.append(("peak", max(run.record.peak_memory_gib.values()), max(predicted.values())))
    if run.record.device_memory_gib is not None:
        shown.append(("card", run.record.device_memory_gib, run.card_bytes(known) / GIB))
    for phase, measured, expected in shown:
        yield Comparison(
            name=run.record.name,
            phase=phase,
            use=run.record.use,
            quantity="GiB",
            measured=measured,
            predicted=expected,
        )
