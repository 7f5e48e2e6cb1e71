"""How long planning takes: ``python -m benchmarks.planner --out benchmarks/results/DATE_cpu_planner``.

One process, one core, no GPU. Seconds are CPU time, so that other work on the host does not count, with the wall time
beside them; each case is the median of several runs with its extremes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from megatron_rl.config.loading import compose
from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors

RANKS = (64, 256, 1024, 4096)
BUDGET_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """A shape and its layouts on a number of ranks."""

    model: str
    layouts: str
    train: ParallelLayout
    rollout: RolloutLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured case."""

    model: str
    layouts: str
    ranks: int
    transfers: int
    rounds: int
    bound_ratio: float
    cpu_s: float
    """Median."""
    low_cpu_s: float
    high_cpu_s: float
    wall_s: float
    """Median; includes waiting for the core."""
    repeats: int


def cases(ranks: int) -> tuple[Case, ...]:
    """A dense and two expert pairs on ``ranks`` ranks; training replicas and engines grow with the ranks."""
    engines = ranks // 8
    return (
        Case(
            "llama3_70b",
            "TP8 PP8 -> TP8",
            ParallelLayout(tensor=8, pipeline=8, data=ranks // 64),
            RolloutLayout(tensor=8, data=engines),
        ),
        Case(
            "deepseek_v3",
            "TP8 EP64 ETP1 -> TP8 EP32",
            ParallelLayout(tensor=8, data=engines, expert=64, expert_tensor=1),
            RolloutLayout(tensor=8, data=engines, expert=32),
        ),
        Case(
            "deepseek_v3",
            "TP8 EP64 ETP1 -> TP8 EP8",
            ParallelLayout(tensor=8, data=engines, expert=64, expert_tensor=1),
            RolloutLayout(tensor=8, data=engines, expert=8),
        ),
    )


def plan_case(case: Case, model: ModelConfig) -> ReshardPlan:
    """Layouts and plan from nothing."""
    return plan_reshard(
        logical_tensors(model),
        megatron_layout(model, case.train, padded_vocab_size(model.vocab_size, case.train.tensor)),
        case.train.ranks,
        vllm_rules_layout(model, case.rollout),
        case.rollout.ranks,
        itemsize=2,
        budget_bytes=BUDGET_BYTES,
        ranks_per_node=8,
    )


def measure(case: Case, repeats: int) -> Row:
    """Plan ``repeats`` times."""
    model = compose([f"model={case.model}"]).model
    cpu, wall = [], []
    for _ in range(repeats):
        started, started_wall = time.process_time(), time.perf_counter()
        plan = plan_case(case, model)
        cpu.append(time.process_time() - started)
        wall.append(time.perf_counter() - started_wall)
    return Row(
        model=case.model,
        layouts=case.layouts,
        ranks=case.train.world_size,
        transfers=sum(map(len, plan.rounds)),
        rounds=len(plan.rounds),
        bound_ratio=plan.bound_ratio,
        cpu_s=median(cpu),
        low_cpu_s=min(cpu),
        high_cpu_s=max(cpu),
        wall_s=median(wall),
        repeats=repeats,
    )


def to_markdown(rows: Sequence[Row], command: str, hardware: str, commit: str) -> str:
    """The report beside the JSON."""
    lines = [
        "# Planning time",
        "",
        f"Command: `{command}`.",
        f"Hardware: {hardware}, one process. Commit {commit}. CPU seconds, layouts included: median",
        "(lowest to highest); wall seconds include waiting for a core of the host.",
        "",
        "| shape | layouts | ranks | transfers | rounds | CPU s | wall s | bytes / bound | runs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        spread = f"{row.cpu_s:.1f} ({row.low_cpu_s:.1f} to {row.high_cpu_s:.1f})"
        lines.append(
            f"| {row.model} | {row.layouts} | {row.ranks:,} | {row.transfers:,} | {row.rounds} | {spread} | {row.wall_s:.1f} | "
            f"{row.bound_ratio:.3f} | {row.repeats} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every case and write ``OUT.json`` and ``OUT.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="path without suffix")
    parser.add_argument("--hardware", default="2-core x86 CPU")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--repeats", type=int, default=3, help="runs per case; one beyond 1,024 ranks")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    command = f"python -m benchmarks.planner --repeats {arguments.repeats} --ranks {' '.join(map(str, arguments.ranks))}"
    rows = []
    for ranks in arguments.ranks:
        for case in cases(ranks):
            rows.append(measure(case, arguments.repeats if ranks <= 1024 else 1))
            print(rows[-1], flush=True)
    record = {"command": command, "hardware": arguments.hardware, "commit": commit, "rows": [asdict(row) for row in rows]}
    arguments.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(to_markdown(rows, command, arguments.hardware, commit))


if __name__ == "__main__":
    main()
