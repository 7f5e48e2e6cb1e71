"""What a run leaves behind, in one form for both frameworks, and the figures a comparison needs.

    python -m examples.smollm2_arithmetic.records OUT.json NAME=RUN_FOLDER NAME=TRL_RECORD.json ...

joins runs into one file.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from megatron_rl.config.run_files import CONFIG_JSON
from megatron_rl.observability.environment import ENVIRONMENT_JSON
from megatron_rl.observability.sinks import read_jsonl, read_metrics

ACCURACY = "val/accuracy/mean"
_KEPT = (
    "reward/mean",
    "response_length/mean",
    "actor/entropy",
    "actor/grad_norm",
    "actor/lr",
    "group/frac_zero_std",
    "rollout_corr/logprob_diff_mean",
    "rollout_corr/logprob_diff_max",
    "rollout_corr/kl",
    "rollout_corr/k3_kl",
    "rollout_corr/rollout_is_mean",
    "critic/vf_explained_var",
)
_SAMPLES_KEPT = 3
_SMOOTHED_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One training run. ``wall_s`` is time spent in training: start-up and validation are left out."""

    framework: str
    settings: dict[str, Any]
    """Configuration, flat where the framework's own is."""
    environment: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, float]]
    """``step``, ``seconds``, ``wall_s``, ``tokens`` (prompt and response), ``timing_s/...`` and metrics."""
    validations: list[dict[str, float]]
    """``step``, ``wall_s`` and the greedy held-out accuracy."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """``step``, ``prompt``, ``response``, ``reward``: some of the first and of the last step."""
    peak_allocated_gib: float

    def warm_steps(self, skip: int = 5) -> list[dict[str, float]]:
        """Steps after the first ``skip``, which compile and warm up; of a shorter run the last one."""
        return self.steps[min(skip, len(self.steps) - 1) :]

    def step_seconds(self, skip: int = 5) -> list[float]:
        """Seconds of each warm step."""
        return [row["seconds"] for row in self.warm_steps(skip)]

    def median(self, name: str, skip: int = 5) -> float | None:
        """Median of a number over warm steps; None where none has it."""
        values = [row[name] for row in self.warm_steps(skip) if name in row]
        return statistics.median(values) if values else None

    def tokens_per_second(self, skip: int = 5) -> float:
        """Prompt and response tokens over seconds, warm steps."""
        return sum(row["tokens"] for row in self.warm_steps(skip)) / sum(self.step_seconds(skip))

    def seconds_to_reward(self, level: float) -> float | None:
        """Training time until the mean reward of the last five steps reaches ``level``; None = never."""
        for end in range(_SMOOTHED_STEPS, len(self.steps) + 1):
            if statistics.fmean(row["reward/mean"] for row in self.steps[end - _SMOOTHED_STEPS : end]) >= level:
                return self.steps[end - 1]["wall_s"]
        return None

    def seconds_to_accuracy(self, level: float) -> float | None:
        """Training time of the first validation at or above ``level``; None = never."""
        return next((row["wall_s"] for row in self.validations if row[ACCURACY] >= level), None)

    def accuracy_at(self, wall_s: float) -> float | None:
        """Held-out accuracy of the last validation up to ``wall_s``; None where the run ended before."""
        if self.steps[-1]["wall_s"] < wall_s:
            return None
        return [row[ACCURACY] for row in self.validations if row["wall_s"] <= wall_s][-1]


def from_run_folder(folder: Path) -> RunRecord:
    """Read a run of ``megatron-rl train`` with the callback ``WallClock``."""
    steps: list[dict[str, float]] = []
    validations: list[dict[str, float]] = []
    wall_s = 0.0
    environment = json.loads((folder / ENVIRONMENT_JSON).read_text())
    records = read_metrics(folder / "metrics.jsonl")
    for metrics in records:
        row = {name: value for name, value in metrics.items() if value is not None}
        if row.get("val/step") == 0.0:
            validations.append({"step": 0, "wall_s": 0.0, ACCURACY: row[ACCURACY]})
        seconds = row["perf/seconds_since_step"] - row.get("timing_s/testing", 0.0)
        wall_s += seconds
        phases = {name: value for name, value in row.items() if name.startswith("timing_s/") and name != "timing_s/testing"}
        kept = {name: row[name] for name in _KEPT if name in row}
        tokens = {"tokens": row["perf/total_num_tokens"]}
        steps.append({"step": int(row["step"]), "seconds": seconds, "wall_s": wall_s, **tokens, **phases, **kept})
        if row.get("val/step", 0.0) > 0:
            validations.append({"step": int(row["val/step"]), "wall_s": wall_s, ACCURACY: row[ACCURACY]})
    memory = [value for metrics in records for name, value in metrics.items() if name.startswith("memory/")]
    return RunRecord(
        framework="megatron_rl",
        settings=json.loads((folder / CONFIG_JSON).read_text()),
        environment={name: part for name, part in environment.items() if name in ("hardware", "versions")},
        steps=steps,
        validations=validations,
        samples=_first_and_last(read_jsonl(folder / "samples.jsonl")),
        peak_allocated_gib=max(value for value in memory if value is not None),
    )


def _first_and_last(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A few samples of the first and of the last step."""
    names = ("step", "prompt", "response", "reward")
    kept = []
    for step in sorted({samples[0]["step"], samples[-1]["step"]}) if samples else []:
        rows = [sample for sample in samples if sample["step"] == step][:_SAMPLES_KEPT]
        kept += [{name: row[name] for name in names} for row in rows]
    return kept


def from_trl_record(file: Path) -> RunRecord:
    """Read what ``run_trl.py`` wrote; its token counts are totals since the start, and a step cut short has none."""
    raw = json.loads(file.read_text())
    raw["steps"] = [row for row in raw["steps"] if "tokens" in row]
    before = 0.0
    for row in raw["steps"]:
        row["tokens"], before = row["tokens"] - before, row["tokens"]
    return RunRecord(framework="trl", **raw)


def write_records(runs: dict[str, RunRecord], file: Path) -> None:
    """Store runs by name, a line each: steps by column, numbers to six significant digits."""
    file.parent.mkdir(parents=True, exist_ok=True)
    stored = {name: {**asdict(run), "steps": _columns(run.steps)} for name, run in runs.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(_rounded(run))}" for name, run in stored.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read_records(file: Path) -> dict[str, RunRecord]:
    """Inverse of :func:`write_records`."""
    stored = json.loads(file.read_text())
    return {name: RunRecord(**{**raw, "steps": _rows(raw["steps"])}) for name, raw in stored.items()}


def _columns(rows: Sequence[dict[str, float]]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _rows(columns: dict[str, list[float | None]]) -> list[dict[str, float]]:
    table = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [{name: value for name, value in row.items() if value is not None} for row in table]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main(arguments: list[str]) -> None:
    """Join runs; one that cannot be read is reported and left out."""
    runs: dict[str, RunRecord] = {}
    for argument in arguments[1:]:
        name, _, place = argument.partition("=")
        try:
            runs[name] = from_trl_record(Path(place)) if place.endswith(".json") else from_run_folder(Path(place))
        except (OSError, KeyError, ValueError) as failure:
            print(f"{name}: left out, {type(failure).__name__}: {failure}", file=sys.stderr)
    write_records(runs, Path(arguments[0]))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1:])
