"""A resumed run is several attempts, each with a folder of its own: which steps come from which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron_rl.config.run_files import LATEST, METRICS_FILE
from megatron_rl.report.jsonl_tail import JsonObject, read_objects
from megatron_rl.report.series import finite_or_none


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps ``first_step <= step < end_step`` of one attempt; ``end_step`` None = to its end."""

    folder: Path
    first_step: int
    end_step: int | None = None

    def select(self, file_name: str) -> list[JsonObject]:
        """Objects of one of the attempt's files whose step lies in the segment."""
        return [item for item in read_objects(self.folder / file_name) if self._holds(item.get("step"))]

    def _holds(self, step: object) -> bool:
        number = finite_or_none(step)
        return number is not None and number >= self.first_step and (self.end_step is None or number < self.end_step)


def segments_of(folder: Path, config: Mapping[str, str]) -> list[Segment]:
    """The attempt in ``folder`` and those it resumed from, oldest first.

    An attempt whose first step is k > 1 continues the newest earlier attempt of the same experiment that recorded
    step k - 1; that one's later steps were computed again and do not count.
    """
    first = _first_step(folder)
    segments = [Segment(folder, first)]
    if config.get("trainer.resume_mode") == '"disable"' or not (folder.parent / LATEST).is_dir():
        return segments
    earlier = sorted(path.parent for path in folder.parent.glob(f"*/{METRICS_FILE}") if _is_before(path.parent, folder))
    while segments[0].first_step > 1 and earlier:
        attempt = earlier.pop()
        steps = _steps(attempt)
        end = segments[0].first_step
        if end - 1 in steps:
            segments.insert(0, Segment(attempt, min(steps), end))
    return segments


def _is_before(folder: Path, other: Path) -> bool:
    """Attempts are named by their start time; the link to the newest is no attempt."""
    return not folder.is_symlink() and folder.name < other.name


def _steps(folder: Path) -> set[int]:
    numbers = (finite_or_none(item.get("step")) for item in read_objects(folder / METRICS_FILE))
    return {int(number) for number in numbers if number is not None}


def _first_step(folder: Path) -> int:
    return min(_steps(folder), default=0)
