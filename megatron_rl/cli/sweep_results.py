"""A sweep's folder -> results on the terminal and in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from launchers.sweep_plan import Compose
from launchers.sweep_points import sweep_name
from launchers.sweep_state import Manifest, ManifestPoint, PointRecord, read_manifest, settled
from megatron_rl.cli.plain_table import console, print_table
from megatron_rl.cli.report import REPORT_FILE
from megatron_rl.cli.report import run as write_report
from megatron_rl.config.errors import ConfigError
from megatron_rl.observability.sinks import Record
from megatron_rl.observability.summary import mean_of
from megatron_rl.sweep.efficiency import efficiencies
from megatron_rl.sweep.model_output import modelled_point
from megatron_rl.sweep.outputs import write_outputs
from megatron_rl.sweep.point_result import PointResult, UnfinishedPoint, measured_point
from megatron_rl.sweep.step_statistics import read_attempts, step_statistics
from megatron_rl.sweep.tables import SweepResults, phase_columns, phase_rows, shown_columns, shown_row

MAX_POINT_COLUMNS = 6
"""With more points, seconds by phase are in the files only."""


def show_results(folder: Path, compose: Compose) -> int:
    """Write every output of a sweep and print its tables; returns 1 where a point has failed.

    Raises:
        ConfigError: the folder holds no sweep.
    """
    manifest = read_manifest(folder)
    sweep = collect(folder, manifest, compose)
    out = console()
    measured = any(result.source == "measured" for result in sweep.results)
    if measured:
        write_report([str(folder)])
    paths = write_outputs(folder, sweep, REPORT_FILE if measured else "")
    _print(sweep, out)
    out.print(f"results in {folder}: {', '.join(path.name for path in paths)}", soft_wrap=True, highlight=False)
    return 1 if any(one.state == "failed" for one in sweep.unfinished) else 0


def collect(folder: Path, manifest: Manifest, compose: Compose) -> SweepResults:
    """Results of the finished points, the model's output where asked for, and what is missing."""
    spec = manifest.spec
    results: list[PointResult] = []
    unfinished: list[UnfinishedPoint] = []
    for point in manifest.points:
        found = _measured(folder, point, manifest) if point.runs else None
        if isinstance(found, PointResult):
            results.append(found)
        elif found is not None:
            unfinished.append(found)
    if spec.estimate:
        lengths = _mean_lengths(folder, results)
        modelled = list(_modelled(manifest, compose, lengths))
        results += [one for one in modelled if isinstance(one, PointResult)]
        unfinished += [one for one in modelled if isinstance(one, UnfinishedPoint)]
    words = f"{spec.mode} scaling" if spec.kind == "scaling" else "grid"
    return SweepResults(
        title=f"{sweep_name(spec)}: {words}",
        results=results,
        efficiency=efficiencies(results) if spec.kind == "scaling" else {},
        unfinished=unfinished,
        warmup_steps=spec.warmup_steps,
    )


def _measured(folder: Path, point: ManifestPoint, manifest: Manifest) -> PointResult | UnfinishedPoint:
    record = settled(folder, point.name)
    attempts = read_attempts(folder / point.name)
    statistics = step_statistics(attempts, manifest.spec.warmup_steps)
    if record is None or record.state != "finished" or statistics is None:
        return _unfinished(point.name, record, sum(map(len, attempts)))
    return measured_point(
        point.name,
        point.settings,
        point.num_ranks,
        statistics,
        wall_s=record.wall_s,
        price_per_hour=manifest.spec.price_per_hour,
    )


def _unfinished(name: str, record: PointRecord | None, num_steps: int) -> UnfinishedPoint:
    if record is None:
        return UnfinishedPoint(name, "not started", "", "")
    reason = record.reason or f"{num_steps} steps so far" + (f", job {record.job_id}" if record.job_id else "")
    return UnfinishedPoint(name, record.state, reason, record.run_dir or "")


def _modelled(
    manifest: Manifest, compose: Compose, lengths: tuple[int | None, int | None]
) -> Iterator[PointResult | UnfinishedPoint]:
    spec = manifest.spec
    assert spec.gpu is not None, "checked when the sweep was read"
    for point in manifest.points:
        try:
            yield modelled_point(
                point.name,
                point.settings,
                compose(point.overrides),
                point.num_ranks,
                gpu=spec.gpu,
                price_per_hour=spec.price_per_hour,
                prompt_tokens=spec.prompt_tokens or lengths[0],
                response_tokens=spec.response_tokens or lengths[1],
            )
        except ConfigError as failure:
            yield UnfinishedPoint(point.name, "not modelled", "; ".join(failure.problems), "")


def _mean_lengths(folder: Path, results: Sequence[PointResult]) -> tuple[int | None, int | None]:
    """Mean tokens of prompts and responses as the smallest measured point had them."""
    if not results:
        return None, None
    smallest = min(results, key=lambda result: result.num_ranks)
    records = [record for records in read_attempts(folder / smallest.name) for record in records]
    return _rounded_mean(records, "prompt_length/mean"), _rounded_mean(records, "response_length/mean")


def _rounded_mean(records: Sequence[Record], name: str) -> int | None:
    mean = mean_of(records, name)
    return None if mean is None else max(1, round(mean))


def _print(sweep: SweepResults, out: Console) -> None:
    if sweep.results:
        print_table(out, sweep.title, shown_columns(sweep), [shown_row(sweep, result) for result in sweep.results])
        if len(sweep.results) <= MAX_POINT_COLUMNS:
            print_table(out, "seconds a step by phase", phase_columns(sweep), phase_rows(sweep))
        for note in dict.fromkeys(result.note for result in sweep.results if result.note):
            out.print(f"{note}; nobody has run it", soft_wrap=True, highlight=False, markup=False)
    if sweep.unfinished:
        rows = [[one.name, one.state, one.reason, one.run_dir] for one in sweep.unfinished]
        print_table(out, "points without a result", ["point", "state", "reason", "run folder"], rows)
