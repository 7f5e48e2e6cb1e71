"""Coefficients from measurements: one linear fit over all phases, each coefficient starting from what is believed of it.

Seconds of a phase are ``sum(work * ideal seconds * slowness) + messages``: linear in the slownesses (``1 / fraction``, or
seconds each). Beliefs and their spreads are those of ``coefficients``; a coefficient that no record speaks of keeps its own.

``python -m megatron_rl.estimator.calibration FILE ... --held-out NAME ...`` takes records into the package's data, fits,
prints prediction against measurement and renews the tables of docs/cost_estimator.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p
from pathlib import Path
from statistics import fmean, pstdev

from megatron_rl.config.errors import ConfigError
from megatron_rl.estimator.catalogue import GIB, Gpu
from megatron_rl.estimator.coefficients import LINEAR_KINDS, PRICES, Coefficient, Coefficients, ideal_s
from megatron_rl.estimator.fitted import COEFFICIENTS_FILE, write_coefficients
from megatron_rl.estimator.least_squares import Observation, Unknown, fit_bounded
from megatron_rl.estimator.measured_run import MeasuredRun, measured_runs
from megatron_rl.estimator.measurements import (
    MEASUREMENTS_FILE,
    Measurement,
    PhaseName,
    read_records,
    write_records,
)
from megatron_rl.estimator.step_time import PhaseCost

PHASE_NOISE_FRAC = 0.05
"""Standard deviation of what the model leaves out, of a phase's time; short phases are noisier."""
_NOISE_FRAC: Mapping[PhaseName, float] = {"sync": 0.3, "other": 0.3}
_HOST_BOUND_FRAC = 0.9
"""Of a phase's time; where launching takes this much the phase tells of the host."""
_DATA = Path(__file__).parent / "data"
_PAGE = Path(__file__).parents[2] / "docs" / "cost_estimator.md"


def fit(runs: Iterable[MeasuredRun], gpu: Gpu, believed: Coefficients | None = None) -> Coefficients:
    """Coefficients of one kind of card from its records with ``use="calibration"``, starting from ``believed``.

    Without such records the answer is ``believed`` itself.
    """
    known = Coefficients() if believed is None else believed
    own = [run for run in runs if run.record.use == "calibration" and run.gpu.name == gpu.name]
    if not own:
        return known
    known = known.updated(_rates(own) | _memory(own), gpu.name)
    return known.updated(_phases(own, gpu, known), gpu.name)


def _rates(runs: Sequence[MeasuredRun]) -> dict[str, Coefficient]:
    """Of single operations, as measured: links and copies."""
    measured = {
        "memory_frac": ("memory_bytes_per_s", runs[0].gpu.memory_bytes_per_s),
        "link_frac": ("link_bytes_per_s", runs[0].gpu.intra_node.bytes_per_s),
        "collective_frac": ("all_gather_bytes_per_s", runs[0].gpu.intra_node.bytes_per_s),
    }
    found = {}
    for name, (rate, peak) in measured.items():
        having = [run.record for run in runs if rate in run.record.yardsticks]
        if having:
            found[name] = _mean_of([record.yardsticks[rate] / peak for record in having], having)
    return found


def _memory(runs: Sequence[MeasuredRun]) -> dict[str, Coefficient]:
    """What the driver counts beyond torch, where a run noted it.

    A sleeping engine's pool is in torch's figures and not in the driver's, so such runs tell nothing.
    """
    found = {}
    starts = [run.record for run in runs if "engine_start_bytes" in run.record.yardsticks]
    if starts:
        found["engine_bytes"] = _mean_of([record.yardsticks["engine_start_bytes"] for record in starts], starts)
    runs = [run for run in runs if run.deployment.engine is not None and not run.deployment.engine.sleeps]
    outside = [run.record for run in runs if run.record.device_memory_gib and run.record.reserved_memory_gib]
    if outside:
        gaps = [((r.device_memory_gib or 0.0) - (r.reserved_memory_gib or 0.0)) * GIB for r in outside]
        found["context_bytes"] = _mean_of([max(0.0, gap) for gap in gaps], outside)
    return found


def _mean_of(values: Sequence[float], records: Sequence[Measurement]) -> Coefficient:
    return Coefficient(value=fmean(values), spread=pstdev(values), sources=tuple(record.name for record in records))


@dataclass(frozen=True, slots=True)
class _Row:
    """One measured phase."""

    name: str
    costs: Sequence[PhaseCost]
    measured_s: float
    spread_s: float

    @property
    def launches(self) -> float:
        """Layer passes that the host launches."""
        return sum(cost.work.layer_passes * (1 + cost.bubble_frac) for cost in self.costs)

    def observation(self, gpu: Gpu) -> Observation:
        """What it says of the card, if the host keeps up."""
        messages_s = sum(cost.messages_s * (1 + cost.bubble_frac) for cost in self.costs)
        weights = [_weight(kind, self.costs, gpu) for kind in LINEAR_KINDS]
        return Observation(weights, self.measured_s - messages_s, self.spread_s)

    def deviation(self, gpu: Gpu, known: Coefficients) -> float:
        """Of the model, in standard deviations."""
        return (sum(cost.seconds(gpu, known) for cost in self.costs) - self.measured_s) / self.spread_s


def _phases(runs: Sequence[MeasuredRun], gpu: Gpu, known: Coefficients) -> dict[str, Coefficient]:
    """The most likely of fits that differ in how fast the host launches: a phase tells of the host or of the card."""
    rows = []
    for run in runs:
        for phase, costs in run.costs(known):
            measured_s = run.record.phase_seconds[phase]
            spread_s = measured_s * _NOISE_FRAC.get(phase, PHASE_NOISE_FRAC)
            rows.append(_Row(run.record.name, costs, measured_s, spread_s))
    tried = [known.layer_pass_s.value * 2 ** (step / 8) for step in range(-24, 25)]
    fits = [_with_host(rows, gpu, known, pass_s) for pass_s in tried]
    return min(fits, key=lambda fit: fit[0])[1]


def _with_host(rows: Sequence[_Row], gpu: Gpu, known: Coefficients, pass_s: float) -> tuple[float, dict[str, Coefficient]]:
    """The fit if the host takes ``pass_s`` to launch a layer: (squared deviations, coefficients)."""
    bound = [row for row in rows if row.launches * pass_s >= _HOST_BOUND_FRAC * row.measured_s]
    free = [row for row in rows if row not in bound]
    unknowns = [_unknown(kind, known) for kind in LINEAR_KINDS]
    observations = [row.observation(gpu) for row in free]
    believed, found = known.layer_pass_s, {}
    error = (log(pass_s / believed.value) / log1p(believed.spread / believed.value)) ** 2  # hosts differ by factors
    if bound:
        names = tuple(dict.fromkeys(row.name for row in bound))
        found["layer_pass_s"] = Coefficient(value=pass_s, spread=PHASE_NOISE_FRAC * pass_s, sources=names)
    for number, (value, spread) in enumerate(fit_bounded(unknowns, observations)):
        kind, unknown = LINEAR_KINDS[number], unknowns[number]
        error += ((value - unknown.mean) / unknown.spread) ** 2
        speaking = [row.name for row, o in zip(free, observations, strict=True) if o.weights[number] > 0]
        if speaking:
            found[PRICES[kind].coefficient] = _coefficient(kind, value, spread, tuple(dict.fromkeys(speaking)))
    fitted = known.updated(found, gpu.name)
    return error + sum(row.deviation(gpu, fitted) ** 2 for row in rows), found


def _weight(kind: str, costs: Sequence[PhaseCost], gpu: Gpu) -> float:
    """Ideal seconds of one kind of work in a phase."""
    amount = sum(float(getattr(cost.work, kind)) * (1 + cost.bubble_frac) for cost in costs)
    return amount * ideal_s(kind, gpu)


def _unknown(kind: str, known: Coefficients) -> Unknown:
    """Belief about a slowness; nothing is faster than its data sheet."""
    believed = known.get(PRICES[kind].coefficient)
    spread = believed.spread or 0.02 * believed.value
    if PRICES[kind].rate is None:
        return Unknown(believed.value, spread, 0.0)
    return Unknown(1 / believed.value, spread / believed.value**2, 1.0)


def _coefficient(kind: str, value: float, spread: float, sources: tuple[str, ...]) -> Coefficient:
    if PRICES[kind].rate is None:
        return Coefficient(value=value, spread=spread, sources=sources)
    return Coefficient(value=1 / value, spread=spread / value**2, sources=sources)


def fit_all(runs: Sequence[MeasuredRun]) -> dict[str, Coefficients]:
    """Every card that was measured, by its full name."""
    cards = {run.gpu.name: run.gpu for run in runs if run.record.use == "calibration"}
    return {name: fit(runs, gpu) for name, gpu in cards.items()}


def taken_in(
    stored: Sequence[Measurement], new: Sequence[Measurement], *, held_out: Sequence[str] = (), context: Sequence[str] = ()
) -> tuple[Measurement, ...]:
    """Stored records with the new ones, which replace those of the same name.

    Of the new ones, those whose name contains a word of ``context`` or ``held_out`` are used so; the others as they say.
    """

    def used(record: Measurement) -> Measurement:
        for use, words in (("context", context), ("held_out", held_out)):
            if any(word in record.name for word in words):
                return record.model_copy(update={"use": use})
        return record

    return tuple({record.name: record for record in (*stored, *map(used, new))}.values())


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 where a file cannot be read."""
    from megatron_rl.estimator import page

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="measurement files: of benchmarks.step --store, or of a probe")
    parser.add_argument("--held-out", nargs="*", default=[], help="parts of names: these records are compared, not fitted")
    parser.add_argument("--context", nargs="*", default=[], help="likewise: shown beside the prediction, of unusual runs")
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    parser.add_argument("--page", type=Path, default=_PAGE, help="document whose tables are renewed")
    arguments = parser.parse_args(argv)
    try:
        stored = read_records(_DATA / MEASUREMENTS_FILE)
        new = [record for path in arguments.files for record in read_records(path)]
        records = taken_in(stored, new, held_out=arguments.held_out, context=arguments.context)
        runs = measured_runs(records)
        fitted = fit_all(runs)
    except ConfigError as failure:
        print("\n".join(failure.problems), file=sys.stderr)
        return 1
    tables = page.tables(runs, fitted)
    print("\n".join(tables.values()))
    if not arguments.dry_run:
        write_records(_DATA / MEASUREMENTS_FILE, records)
        write_coefficients(_DATA / COEFFICIENTS_FILE, fitted)
        arguments.page.write_text(page.renewed(arguments.page.read_text(), tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
