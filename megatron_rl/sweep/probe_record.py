"""Measured steps of a run as a measurement for the estimator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from megatron_rl import __version__
from megatron_rl.config.loading import group_choices
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.catalogue import GIB, gpus
from megatron_rl.estimator.measurements import CPU, MeasuredBatch, Measurement, PhaseName
from megatron_rl.estimator.presets import preset_model
from megatron_rl.estimator.recorded_settings import settings_of
from megatron_rl.observability.memory_summary import MemorySummary, Peaks
from megatron_rl.observability.sinks import Record
from megatron_rl.observability.summary import mean_of

PHASES: Mapping[PhaseName, tuple[str, ...]] = {
    "rollout": ("gen",),
    "score_actor": ("old_log_prob",),
    "score_reference": ("ref",),
    "score_critic": ("values",),
    "update_critic": ("update_critic",),
    "update_actor": ("update_actor",),
    "sync": ("update_weights",),
    "other": ("reward", "adv", "switch", "check_replicas", "other"),
}
"""The estimator's phases -> the timers' that they are made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """Peaks of the fullest rank, GiB. On a CPU the resident set stands in for what was allocated."""

    allocated_gib: Mapping[str, float]
    """By timer."""
    reserved_gib: float | None = None
    device_gib: float | None = None

    @classmethod
    def of_ranks(cls, ranks: Iterable[Peaks]) -> MeasuredMemory:
        """Of what a run left of each of its ranks."""
        largest: dict[tuple[str, str], float] = {}
        for timer, kind, size in ((t, k, s) for peaks in ranks for t, kinds in peaks.items() for k, s in kinds.items()):
            largest[timer, kind] = max(size, largest.get((timer, kind), 0.0))
        main = "allocated" if any(kind == "allocated" for _, kind in largest) else "cpu"
        whole = {kind: max((s for (_, k), s in largest.items() if k == kind), default=None) for kind in ("reserved", "device")}
        return cls(
            allocated_gib={timer: size for (timer, kind), size in largest.items() if kind == main},
            reserved_gib=whole["reserved"],
            device_gib=whole["device"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """What a run tells of itself when it is over."""

    config: RunConfig
    """With its world filled in."""
    records: Sequence[Record]
    """Of the steps that count."""
    num_ranks: int
    device: str
    """As torch names it."""
    memory: MemorySummary


_NOT_SHAPE = {"name", "path", "tokenizer_path", "chat_template", "transformer_impl"}


def measurement_of(job: MeasuredJob, *, name: str, source: str, date: str, squared_tokens: float = 0.0) -> Measurement:
    """The measurement, by this version of megatron-rl.

    Args:
        job: what was measured.
        name: of the record.
        source: command, and how many steps.
        date: ISO.
        squared_tokens: mean of (prompt + response)^2 over the samples; 0 = not known.

    Raises ValueError where the estimator does not know the card, or has no preset of the model's shape.
    """
    config, records, memory = job.config, job.records, MeasuredMemory.of_ranks(job.memory.ranks.values())
    gpu, preset = catalogue_name(job.device, job.memory.card_gib), preset_of_shape(config.model)
    if gpu is None:
        raise ValueError(f"{job.device} is not in the estimator's catalogue")
    if preset is None:
        raise ValueError("no model preset has this shape")
    phases = {phase: timers for phase, timers in PHASES.items() if phase not in _phases_without_role(config)}
    by_phase = {phase: [_seconds(record, timers) for record in records] for phase, timers in phases.items()}
    used = {phase: values for phase, values in by_phase.items() if sum(values) > 0}
    peaks = {phase: max(memory.allocated_gib.get(timer, 0.0) for timer in timers) for phase, timers in phases.items()}
    return Measurement(
        name=name,
        gpu=gpu,
        num_gpus=job.num_ranks,
        model=preset,
        software=f"megatron-rl {__version__}",
        settings=settings_of(config, preset),
        batch=MeasuredBatch(
            samples=config.data.train_batch_size * config.rollout.n,
            samples_per_prompt=config.rollout.n,
            prompt_tokens=mean_of(records, "prompt_length/mean") or 0.0,
            response_tokens=mean_of(records, "response_length/mean") or 0.0,
            longest_response_tokens=mean_of(records, "response_length/max") or 0.0,
            squared_tokens=squared_tokens,
        ),
        phase_seconds={phase: sum(values) / len(values) for phase, values in used.items()},
        phase_spread_s={p: (max(v) - min(v)) / 2 for p, v in used.items() if max(v) > min(v)},
        peak_memory_gib={phase: peak for phase, peak in peaks.items() if peak > 0},
        reserved_memory_gib=memory.reserved_gib,
        device_memory_gib=memory.device_gib,
        use="context" if gpu == CPU else "calibration",
        source=source,
        date=date,
    )


def _phases_without_role(config: RunConfig) -> set[PhaseName]:
    """Phases that are timed, and take microseconds, though nothing works in them."""
    without: set[PhaseName] = set()
    if not config.uses_critic:
        without |= {"score_critic", "update_critic"}
    if not config.uses_reference:
        without.add("score_reference")
    return without


def catalogue_name(device: str, card_gib: float | None) -> str | None:
    """Full name of the card in the estimator's catalogue: ``NVIDIA H200`` -> ``H200-141GB``; None where it has none."""
    if card_gib is None:
        return CPU
    words = device.upper().replace("-", " ").split()
    kin = [gpu for name, gpu in gpus().items() if name.split("-")[0].upper() in words]
    return min(kin, key=lambda gpu: abs(gpu.memory_bytes / GIB - card_gib)).name if kin else None


def preset_of_shape(model: ModelConfig) -> str | None:
    """The preset with exactly this shape, the one of the same name first; None where there is none."""
    shape = model.model_dump(exclude=_NOT_SHAPE)
    names = sorted(group_choices()["model"], key=lambda name: name != model.name)
    return next((name for name in names if preset_model(name).model_dump(exclude=_NOT_SHAPE) == shape), None)


def _seconds(record: Record, timers: Sequence[str]) -> float:
    return sum(record.get(f"timing_s/{timer}") or 0.0 for timer in timers)
