"""Stored measurements: one JSON record per run and phase set, read by the calibration and appended by probes."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from megatron_rl.config.base import Section
from megatron_rl.config.errors import ConfigError

CPU = "CPU"
"""Card of a run without one. Such records are kept for people; the model is one of GPUs."""

PhaseName = Literal[
    "rollout", "score_actor", "score_reference", "score_critic", "update_critic", "update_actor", "sync", "other"
]
Setting = bool | int | float | str | list[bool | int | float | str] | None


class MeasuredBatch(Section):
    """Samples of the measured steps, mean over the steps."""

    samples: NonNegativeInt = 0
    """Of one step."""
    samples_per_prompt: PositiveInt = 1
    prompt_tokens: NonNegativeFloat = 0
    """Mean of a prompt."""
    response_tokens: NonNegativeFloat = 0
    """Mean of a response."""
    longest_response_tokens: NonNegativeFloat = 0
    """Of a step; 0 = all responses are equally long."""
    squared_tokens: NonNegativeFloat = 0
    """Mean of (prompt + response)^2, which attention pays for; 0 = that of the mean length."""


class Measurement(Section):
    """What one run took. Example: 512 samples of 128 + 256 tokens on one H200 in ``{"rollout": 3.54}`` seconds."""

    name: str
    gpu: str
    """Full name of the catalogue, or ``CPU``."""
    num_gpus: PositiveInt
    model: str
    """Name of a model preset (``model=``)."""
    software: str
    """What ran, when it was not this trainer: other code has other efficiencies."""
    settings: dict[str, Setting] = Field({}, description="Configuration keys that differ from their defaults, dotted.")
    batch: MeasuredBatch = MeasuredBatch()
    phase_seconds: dict[PhaseName, PositiveFloat] = Field({}, description="Of one step.")
    phase_spread_s: dict[PhaseName, PositiveFloat] = Field({}, description="Half of the range seen, seconds.")
    peak_memory_gib: dict[PhaseName, PositiveFloat] = Field(
        {}, description="Most the allocator had handed out, by phase, of the fullest rank."
    )
    reserved_memory_gib: PositiveFloat | None = Field(None, description="Most the allocator held, fragments included.")
    device_memory_gib: PositiveFloat | None = Field(None, description="Most the driver counted for the card.")
    yardsticks: dict[str, PositiveFloat] = Field({}, description="Rates of single operations.")
    """matmul_flops_per_s, memory_bytes_per_s, link_bytes_per_s, all_gather_bytes_per_s."""
    use: Literal["calibration", "held_out", "context"]
    """``context`` records are shown beside the prediction only: other software, or too little is known of the run."""
    source: str
    date: str | None = None
    """ISO date; null where it was not written down."""


_RECORDS = TypeAdapter(tuple[Measurement, ...])


def load_measurements(path: Path | None = None) -> tuple[Measurement, ...]:
    """Records of GPUs: those shipped with the package, followed by those in ``path``.

    Raises ConfigError naming the file and the record where one does not fit the format.
    """
    shipped = files("megatron_rl.estimator") / "data" / "measurements.json"
    records = _RECORDS.validate_json(shipped.read_text())
    if path is not None:
        records += tuple(record for record in read_records(path) if record.gpu != CPU)
    return records


def read_records(path: Path) -> tuple[Measurement, ...]:
    """Records of one file."""
    try:
        return _RECORDS.validate_json(path.read_text())
    except FileNotFoundError:
        raise ConfigError([f"measurements={path}: no such file"]) from None
    except ValidationError as failure:
        problems = [f"measurements={path}: record {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in failure.errors()]
        raise ConfigError(problems) from None


def append_measurement(path: Path, record: Measurement) -> None:
    """Add a record to a file, which is made if need be; the file is replaced in one step."""
    records = (*(read_records(path) if path.exists() else ()), record)
    plain = [json.loads(one.model_dump_json(exclude_defaults=True)) for one in records]
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(plain, indent=1) + "\n")
    partial.replace(path)
