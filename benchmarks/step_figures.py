"""A run folder's steps -> what each phase achieved. Plain numbers; tokens are those of real documents, padding never counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import Path
from statistics import median

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.config.training import RecomputeConfig, TrainedRoleConfig
from megatron_rl.estimator.decode import EngineLoad, read_bytes
from megatron_rl.estimator.engine_memory import kv_bytes_per_token
from megatron_rl.estimator.flops import Head, attention_flops_per_square, forward_flops, train_flops
from megatron_rl.observability.sinks import Record
from megatron_rl.rollout.prompt_distribution import distribute_prompts

SCORING, UPDATES = ("old_log_prob", "ref", "values"), ("update_actor", "update_critic")
USEFUL = ("gen", *SCORING, *UPDATES)
"""Phases that generate, score or train; the rest of a step is overhead."""
_RAN_S = 1e-3
"""A role that is absent, or whose answer is known already, takes less than this and did not run."""


@dataclass(frozen=True, slots=True)
class Document:
    """Prompt and response, tokens. Example: ``Document(512, 700)``."""

    prompt: int
    response: int

    @property
    def length(self) -> int:
        """Tokens of both."""
        return self.prompt + self.response


@dataclass(frozen=True, slots=True)
class Spread:
    """Example: ``Spread(2.0, 1.9, 2.3)``."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """One phase over the measured steps; None where a figure means nothing for it."""

    phase: str
    seconds: Spread
    share_frac: float
    """Of the median step."""
    tokens_per_s: float | None = None
    """Of the whole job: generated tokens of the rollout, prompt and response elsewhere."""
    mfu: float | None = None
    """Useful FLOP/s over the measured matmul rate of all devices; recomputation is not useful."""
    mfu_with_recompute: float | None = None
    """The same with the layers' recomputed FLOPs; None where nothing is recomputed."""
    read_frac: float | None = None
    """Bytes that decoding must read, over what the measured copy rate moves in the same time."""
    peak_gib: float | None = None
    """Allocated at the worst moment on the fullest rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Measured rates of one device."""

    matmul_flops_per_s: float
    copy_bytes_per_s: float
    """Read and written."""


def read_documents(samples: Path) -> dict[int, list[Document]]:
    """Step -> its documents in batch order, from a run's ``samples.jsonl``, which must hold all of them."""
    found: dict[int, list[Document]] = {}
    for line in samples.read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        found.setdefault(sample["step"], []).append(Document(sample["prompt_length"], sample["response_length"]))
    return found


def phase_figures(
    config: RunConfig,
    records: Sequence[Record],
    documents: Mapping[int, Sequence[Document]],
    *,
    num_ranks: int,
    ceilings: Ceilings,
    peaks_gib: Mapping[str, float],
) -> list[PhaseFigures]:
    """Every phase that took time, longest first.

    Args:
        config: of the run, with its world filled in.
        records: the measured steps.
        documents: of these steps.
        num_ranks: of the job.
        ceilings: of one device.
        peaks_gib: allocated memory by phase, of the fullest rank.
    """
    names = [name.removeprefix("timing_s/") for name in records[0] if name.startswith("timing_s/")]
    step_s = median(_seconds(record, "step") for record in records)
    found = []
    for phase in names:
        seconds = [_seconds(record, phase) for record in records]
        if phase == "step" or (phase in USEFUL and max(seconds) < _RAN_S):
            continue
        works = [_work(config, phase, documents[_step(record)]) for record in records]
        rates = [(work, used) for work, used in zip(works, seconds, strict=True) if work is not None]
        matmul_rate = num_ranks * ceilings.matmul_flops_per_s
        copy_rate = num_ranks * ceilings.copy_bytes_per_s
        found.append(
            PhaseFigures(
                phase=phase,
                seconds=Spread.of(seconds),
                share_frac=median(seconds) / step_s,
                tokens_per_s=_median(work.tokens / used for work, used in rates),
                mfu=_median(work.flops / used / matmul_rate for work, used in rates if work.flops),
                mfu_with_recompute=_median(
                    (work.flops + work.recomputed_flops) / used / matmul_rate for work, used in rates if work.recomputed_flops
                ),
                read_frac=_median(work.read_bytes / used / copy_rate for work, used in rates if work.read_bytes),
                peak_gib=peaks_gib.get(phase),
            )
        )
    return sorted(found, key=lambda one: -one.seconds.median)


def other_share(records: Sequence[Record]) -> Spread:
    """Share of the step that neither generates nor scores nor trains."""
    return Spread.of([1 - sum(_seconds(record, phase) for phase in USEFUL) / _seconds(record, "step") for record in records])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    tokens: int
    flops: float = 0.0
    recomputed_flops: float = 0.0
    read_bytes: float = 0.0


def _work(config: RunConfig, phase: str, documents: Sequence[Document]) -> _Work | None:
    lengths = [document.length for document in documents]
    if phase == "gen":
        return _Work(tokens=sum(document.response for document in documents), read_bytes=decode_read_bytes(config, documents))
    if phase in SCORING:
        return _Work(tokens=sum(lengths), flops=forward_flops(config.model, lengths, "value" if phase == "values" else "lm"))
    if phase in UPDATES:
        role: TrainedRoleConfig = config.critic if phase == "update_critic" else config.actor
        head: Head = "value" if phase == "update_critic" else "lm"
        passes = role.ppo_epochs
        return _Work(
            tokens=passes * sum(lengths),
            flops=passes * train_flops(config.model, lengths, head),
            recomputed_flops=passes * recomputed_flops(config.model, lengths, role.recompute),
        )
    return None


def recomputed_flops(model: ModelConfig, lengths: Sequence[int], recompute: RecomputeConfig) -> float:
    """FLOPs of the second forward of the layers that activation recomputation causes; heads and norms are left out."""
    if recompute.granularity is None:
        return 0.0
    if recompute.granularity == "selective":
        return float(attention_flops_per_square(model) * sum(length * length for length in lengths))
    layers = model.num_layers
    recomputed = recompute.num_layers if recompute.method == "block" else layers
    return forward_flops(model, lengths, "value") * min(recomputed, layers) / layers


def decode_read_bytes(config: RunConfig, documents: Sequence[Document]) -> float:
    """Bytes all engines must read to generate the responses: weights once an iteration, each cached token once a token."""
    engines = config.rollout.data_parallel_size or 1
    tensor, samples = config.rollout.tensor_parallel_size, config.rollout.n
    element_bytes = 4 if config.trainer.dtype == "float32" else 2
    prompts = [document.prompt for document in documents[::samples]]
    total = 0.0
    for share in distribute_prompts(prompts, engines):
        mine = [document for prompt in share for document in documents[prompt * samples : (prompt + 1) * samples]]
        iterations = num_iterations([document.response for document in mine], config.rollout.max_num_seqs)
        weights = EngineLoad(
            tensor=tensor, sequences=0, prefilled_prompts=0, prompt_tokens=0, response_tokens=0, iterations=iterations
        )
        # The cache of token t holds the prompt and the t - 1 tokens before it.
        cached = sum(one.response * (one.prompt + (one.response - 1) / 2) for one in mine)
        cache_bytes = cached * kv_bytes_per_token(config.model, tensor, element_bytes)
        total += tensor * (read_bytes(config.model, weights) * element_bytes / 2 + cache_bytes)
    return total


def num_iterations(responses: Iterable[int], seats: int) -> int:
    """Engine iterations until the last answer ends: a free seat takes the next request. Example: ([3, 1, 1], 2) is 3."""
    ends = [0] * seats
    heapify(ends)
    for response in responses:
        heapreplace(ends, ends[0] + response)
    return max(ends)


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return median(known) if known else None


def _seconds(record: Record, phase: str) -> float:
    return record.get(f"timing_s/{phase}") or 0.0


def _step(record: Record) -> int:
    return int(record["step"] or 0)
