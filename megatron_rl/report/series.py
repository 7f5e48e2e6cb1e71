"""One metric over the steps of a run, and fewer points of it where there are many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Record = Mapping[str, float | None]
"""Numbers of one step, ``step`` among them; None = the value was not finite."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values of a metric at the steps that recorded it. Example: ``Series([1, 2, 3], [0.1, None, 0.3])``."""

    steps: list[int]
    values: list[float | None]
    """None where the recorded value was not finite."""

    def finite(self) -> list[float]:
        """The values without gaps."""
        return [value for value in self.values if value is not None]


def step_of(record: Record) -> int:
    """The step a record belongs to."""
    step = record["step"]
    assert step is not None, "records without a step are left out when they are read"
    return int(step)


def series(records: Sequence[Record], name: str) -> Series:
    """The metric ``name`` where it was recorded; a validation at the step whose weights it tried."""
    tried = "val/step" if name.startswith("val/") else "step"
    points = [(_step_of(record, tried), record[name]) for record in records if name in record]
    return Series([step for step, _ in points], [value for _, value in points])


def _step_of(record: Record, name: str) -> int:
    value = record.get(name)
    return step_of(record) if value is None else int(value)


def metric_names(records: Sequence[Record]) -> list[str]:
    """Every metric of a run in order of first appearance."""
    return [name for name in dict.fromkeys(name for record in records for name in record) if name != "step"]


def mean_tail(values: Sequence[float], count: int = 5) -> float | None:
    """Mean of the last ``count`` values; None without any."""
    tail = values[-count:]
    return sum(tail) / len(tail) if tail else None


def thin(full: Series, max_points: int) -> Series:
    """At most ``max_points`` of the points: first, last, and of each stretch its lowest and highest, at their own steps.

    So a single spike stays visible however long the run.
    """
    count = len(full.steps)
    if count <= max_points:
        return full
    num_stretches = max(1, (max_points - 2) // 2)
    kept = {0, count - 1}
    for stretch in range(num_stretches):
        indices = range(stretch * count // num_stretches, (stretch + 1) * count // num_stretches)
        present = [(value, i) for i in indices if (value := full.values[i]) is not None]
        kept |= {min(present)[1], max(present)[1]} if present else {indices[0]}
    order = sorted(kept)
    return Series([full.steps[i] for i in order], [full.values[i] for i in order])


def finite_or_none(value: object) -> float | None:
    """The number, or None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
