"""Stored measurements: one JSON record per run and phase set, read by the calibration and appended by probes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from megatron_rl.config.atomic_files import write_atomically
from megatron_rl.config.base import Section
from megatron_rl.config.errors import ConfigError

MEASUREMENTS_FILE = "measurements.json"
"""Of the package's data."""
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
    """matmul_flops_per_s, memory_bytes_per_s, link_bytes_per_s, all_gather_bytes_per_s, engine_start_bytes."""
    use: Literal["calibration", "held_out", "context"]
    """``context`` records are shown beside the prediction only: other software, or too little is known of the run."""
    source: str
    date: str | None = None
    """ISO date; null where it was not written down."""


_RECORDS = TypeAdapter(tuple[Measurement, ...])


def shipped_records() -> tuple[Measurement, ...]:
    """Those that come with the package."""
    return _RECORDS.validate_json((files("megatron_rl.estimator") / "data" / MEASUREMENTS_FILE).read_text())


def own_records(path: Path | None) -> tuple[Measurement, ...]:
    """Those of GPUs in a user's file; none without a file. Raises like ``read_records``."""
    return () if path is None else tuple(record for record in read_records(path) if record.gpu != CPU)


def read_records(path: Path) -> tuple[Measurement, ...]:
    """Records of one file. Raises ConfigError naming the file and the record where one does not fit the format."""
    try:
        return _RECORDS.validate_json(path.read_text())
    except FileNotFoundError:
        raise ConfigError([f"measurements={path}: no such file"]) from None
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError([f"measurements={path}: cannot read it: {failure}"]) from None
    except ValidationError as failure:
        raise ConfigError([f"measurements={path}: {_record_problem(error)}" for error in failure.errors()]) from None


def _record_problem(error: ErrorDetails) -> str:
    if not error["loc"]:
        return f"no list of records as megatron-rl probe writes it: {error['msg']}"
    return f"record {'.'.join(map(str, error['loc']))}: {error['msg']}"


def append_measurement(path: Path, record: Measurement) -> None:
    """Add a record to a file, which is made if need be; the file is replaced in one step."""
    write_records(path, (*(read_records(path) if path.exists() else ()), record))


def write_records(path: Path, records: Sequence[Measurement]) -> None:
    """Write a file of records in one step."""
    plain = [json.loads(one.model_dump_json(exclude_defaults=True)) for one in records]
    write_atomically(path, json.dumps(plain, indent=1) + "\n")
