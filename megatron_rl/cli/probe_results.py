"""A probe's run folder -> tables, verdict, ``probe.json`` and a measurement for the estimator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console

from launchers.failure import failure_line
from megatron_rl.cli.plain_table import console, print_table
from megatron_rl.cli.probe import Probe
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import METRICS_FILE, read_run_config
from megatron_rl.estimator.measurements import append_measurement
from megatron_rl.observability.environment import ENVIRONMENT_JSON
from megatron_rl.observability.memory_summary import MemorySummary, Peaks, read_memory_summary
from megatron_rl.observability.sinks import Record, read_metrics
from megatron_rl.sweep.probe_record import MeasuredJob, measurement_of
from megatron_rl.sweep.step_statistics import STEP, Spread, StepStatistics, step_statistics
from megatron_rl.sweep.verdict import (
    Judgement,
    Projection,
    judge_failure,
    judge_learning,
    judge_memory,
    judge_speed,
    project,
)

PROBE_JSON = "probe.json"
MAX_RANK_COLUMNS = 8
"""With more ranks, the memory table shows the fullest and the emptiest."""


@dataclass(frozen=True)
class ProbeFacts:
    """What the run folder says."""

    run_dir: Path
    config: RunConfig
    num_ranks: int
    device: str
    card_gib: float | None
    ranks: Mapping[int, Peaks]
    records: Sequence[Record]
    statistics: StepStatistics
    warmup_steps: int

    @property
    def peak_gib(self) -> float:
        """Most that any rank held: on a GPU all that the driver counts or the allocator reserved, on a CPU what is resident."""
        kinds = ("cpu",) if self.card_gib is None else ("reserved", "device")
        return max(sizes[kind] for phases in self.ranks.values() for sizes in phases.values() for kind in kinds)


def show_failure(run_dir: Path) -> None:
    """Say what a probe that ended early tells."""
    judgement = judge_failure(failure_line(run_dir / "logs") or "no output")
    _print_verdict([judgement], console())


def show_probe(probe: Probe, run_dir: Path) -> int:
    """Print and store what the probe found; returns 1 where it says no to something, else 0."""
    out = console()
    facts = read_facts(run_dir, probe.spec.warmup_steps)
    price = probe.spec.price_per_hour
    projection = project(facts.statistics.step_s.mean, probe.total_steps, facts.num_ranks, price)
    verdict = [
        judge_memory(facts.peak_gib, facts.card_gib, _longest(facts.records), facts.config.data.max_response_length),
        judge_learning(facts.statistics.reward),
        judge_speed(projection, probe.spec.max_hours),
    ]
    _print_memory(facts, out)
    _print_time(facts, out)
    _print_projection(projection, facts, out)
    _print_verdict(verdict, out)
    _store(facts, projection, verdict)
    out.print(f"{_append(facts, probe.measurements)}; all figures in {run_dir / PROBE_JSON}", soft_wrap=True, highlight=False)
    return 1 if any(judgement.answer == "no" for judgement in verdict) else 0


def read_facts(run_dir: Path, warmup_steps: int) -> ProbeFacts:
    """Everything a finished probe left."""
    environment = json.loads((run_dir / ENVIRONMENT_JSON).read_text())["hardware"]
    memory = read_memory_summary(run_dir)
    steps = [record for record in read_metrics(run_dir / METRICS_FILE) if STEP in record]
    statistics = step_statistics([steps], warmup_steps)
    assert statistics is not None, "the plan leaves steps to measure"
    return ProbeFacts(
        run_dir=run_dir,
        config=read_run_config(run_dir),
        num_ranks=int(environment["world_size"]),
        device=str(environment["device"]),
        card_gib=memory.card_gib,
        ranks=memory.ranks,
        records=steps[warmup_steps:],
        statistics=statistics,
        warmup_steps=warmup_steps,
    )


def _longest(records: Sequence[Record]) -> float:
    return max((record.get("response_length/max") or 0.0 for record in records), default=0.0)


def _print_memory(facts: ProbeFacts, out: Console) -> None:
    kinds = ("cpu",) if facts.card_gib is None else ("allocated", "reserved", "device")
    ranks = list(facts.ranks)
    if len(ranks) > MAX_RANK_COLUMNS:
        totals = {rank: max(sizes[kinds[0]] for sizes in phases.values()) for rank, phases in facts.ranks.items()}
        ranks = [max(totals, key=lambda rank: totals[rank]), min(totals, key=lambda rank: totals[rank])]
    card = "" if facts.card_gib is None else f" of {facts.card_gib:.1f}"
    rows = []
    for phase in dict.fromkeys(phase for rank in ranks for phase in facts.ranks[rank]):
        rows.append([phase, *(" / ".join(f"{facts.ranks[rank][phase][kind]:.2f}" for kind in kinds) for rank in ranks)])
    title = f"memory_summary, peak GiB{card}: {' / '.join(kinds)}"
    print_table(out, title, ["phase", *(f"rank {rank}" for rank in ranks)], rows)


def _print_time(facts: ProbeFacts, out: Console) -> None:
    found = facts.statistics
    title = f"step_time, mean ± standard deviation of {found.num_steps} steps after {facts.warmup_steps} of warm-up"
    rows = [[one.phase, _plus_minus(one.seconds), f"{one.share_frac:.0%}"] for one in found.phases]
    rows.append(["step", _plus_minus(found.step_s), f"{found.tokens_per_s:,.0f} tokens/s"])
    print_table(out, title, ["phase", "seconds", "share"], rows)


def _print_projection(projection: Projection, facts: ProbeFacts, out: Console) -> None:
    cost = "" if projection.cost_usd is None else f", {projection.cost_usd:,.2f} USD"
    out.print(
        f"whole run: {projection.total_steps:,} steps in {projection.hours:.3g} h on {facts.num_ranks} ranks = "
        f"{projection.gpu_hours:.3g} rank-hours{cost}; start, validation and saving come on top",
        soft_wrap=True,
        highlight=False,
    )


def _print_verdict(verdict: Sequence[Judgement], out: Console) -> None:
    rows = [[judgement.question, judgement.answer, judgement.reason] for judgement in verdict]
    print_table(out, "verdict", ["question", "answer", "why"], rows)


def _store(facts: ProbeFacts, projection: Projection, verdict: Sequence[Judgement]) -> None:
    content: dict[str, Any] = {
        "device": facts.device,
        "num_ranks": facts.num_ranks,
        "warmup_steps": facts.warmup_steps,
        "statistics": asdict(facts.statistics),
        "memory_gib": {"card": facts.card_gib, "peak": facts.peak_gib, "ranks": dict(facts.ranks)},
        "projection": asdict(projection),
        "verdict": [asdict(judgement) for judgement in verdict],
    }
    (facts.run_dir / PROBE_JSON).write_text(json.dumps(content, indent=1) + "\n")


def _append(facts: ProbeFacts, path: Path) -> str:
    """Add the measurement to the file; returns what was done."""
    if facts.config.algorithm.filter_groups.enable:
        return "no measurement was stored: with algorithm.filter_groups steps sample different numbers of prompts"
    job = MeasuredJob(
        config=facts.config,
        records=facts.records,
        num_ranks=facts.num_ranks,
        device=facts.device,
        memory=MemorySummary(facts.card_gib, facts.ranks),
    )
    try:
        record = measurement_of(
            job,
            name=f"probe_{facts.config.trainer.experiment_name}_{facts.run_dir.name}",
            source=f"megatron-rl probe, {len(facts.records)} steps, half of the range as spread",
            date=date.today().isoformat(),
        )
    except ValueError as unknown:
        return f"no measurement was stored: {unknown}"
    path.parent.mkdir(parents=True, exist_ok=True)
    append_measurement(path, record)
    return f"measurement added to {path}"


def _plus_minus(seconds: Spread) -> str:
    return f"{seconds.mean:.3g}" + ("" if seconds.std is None else f" ± {seconds.std:.2g}")
