"""A probe's run folder as a measurement for the estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megatron_rl.config.batch_arithmetic import batch_arithmetic
from megatron_rl.config.loading import group_choices
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.config.world import data_degree
from megatron_rl.estimator.catalogue import GIB, gpus
from megatron_rl.estimator.measurements import CPU, MeasuredBatch, MeasuredLayout, Measurement, PhaseName
from megatron_rl.estimator.presets import preset_model
from megatron_rl.observability.sinks import Record
from megatron_rl.observability.summary import mean_of

PHASES: Mapping[PhaseName, tuple[str, ...]] = {
    "rollout": ("gen",),
    "scoring": ("old_log_prob", "ref", "values"),
    "update_actor": ("update_actor",),
    "update_critic": ("update_critic",),
    "sync": ("update_weights",),
    "other": ("reward", "adv", "check_replicas", "other"),
}
"""The estimator's phases -> the timers' that they are made of."""
_NOT_SHAPE = {"name", "path", "tokenizer_path", "chat_template"}


def measurement_of(
    config: RunConfig,
    records: Sequence[Record],
    *,
    name: str,
    num_ranks: int,
    gpu: str,
    preset: str,
    software: str,
    peak_memory_gib: Mapping[str, float],
    date: str,
) -> Measurement:
    """The measurement.

    Args:
        config: of the run, with its world filled in.
        records: measured steps.
        name: of the record.
        num_ranks: of the job.
        gpu: full name of the catalogue, or ``CPU``.
        preset: model preset of the run's shape.
        software: name and version of what ran.
        peak_memory_gib: by phase, of the fullest rank.
        date: ISO.
    """
    actor, rollout = config.actor.parallel, config.rollout
    prompt = round(mean_of(records, "prompt_length/mean") or 0.0)
    response = round(mean_of(records, "response_length/mean") or 0.0)
    by_phase = {phase: [_seconds(record, names) for record in records] for phase, names in PHASES.items()}
    used = {phase: values for phase, values in by_phase.items() if sum(values) > 0}
    return Measurement(
        name=name,
        gpu=gpu,
        num_gpus=num_ranks,
        model=preset,
        software=software,
        layout=MeasuredLayout(
            tensor=actor.tensor,
            pipeline=actor.pipeline,
            data=data_degree(actor, num_ranks),
            rollout_tensor=rollout.tensor_parallel_size,
            rollout_data=num_ranks // rollout.tensor_parallel_size,
        ),
        batch=MeasuredBatch(
            samples=config.data.train_batch_size * rollout.n,
            prompt_tokens=prompt,
            response_tokens=response,
            micro_batch_tokens=_micro_batch_tokens(config, num_ranks, prompt + response),
            optimizer_steps=batch_arithmetic(config, num_ranks).roles[0].optimizer_steps,
        ),
        phase_seconds={phase: sum(values) / len(values) for phase, values in used.items()},
        phase_spread_s={p: (max(v) - min(v)) / 2 for p, v in used.items() if max(v) > min(v)},
        peak_memory_gib={phase: peak for phase, peak in peak_memory_gib.items() if peak > 0},
        use="context" if gpu == CPU else "calibration",
        source=f"megatron-rl probe, {len(records)} steps, half of the range as spread",
        date=date,
    )


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


def _micro_batch_tokens(config: RunConfig, num_ranks: int, sample_tokens: int) -> int:
    """Tokens that one micro-batch of the actor held: no more than an optimizer step gives a rank."""
    actor = config.actor
    mini = batch_arithmetic(config, num_ranks).roles[0]
    if actor.use_dynamic_bsz:
        return min(actor.ppo_max_token_len_per_gpu, mini.samples_per_rank * sample_tokens)
    assert actor.ppo_micro_batch_size_per_gpu is not None, "validated"
    return min(actor.ppo_micro_batch_size_per_gpu, mini.samples_per_rank) * sample_tokens


def _seconds(record: Record, timers: Sequence[str]) -> float:
    return sum(record.get(f"timing_s/{timer}") or 0.0 for timer in timers)
