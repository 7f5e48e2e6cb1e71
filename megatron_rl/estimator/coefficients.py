"""The numbers of the time and memory model that neither shapes nor data sheets give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from megatron_rl.estimator.catalogue import GIB, Gpu
from megatron_rl.estimator.memory import ProcessMemory
from megatron_rl.estimator.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One number and where it comes from. Example: ``Coefficient(value=0.74, spread=0.02, sources=("run_a", "run_b"))``."""

    value: float
    spread: float = 0.0
    """Standard deviation; of an assumption, how far off it may well be."""
    sources: tuple[str, ...] = ()
    """Names of measurements; empty = assumed."""

    @property
    def assumed(self) -> bool:
        """No measurement stands behind it."""
        return not self.sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Everything that cannot be derived. The defaults are what is believed of a card before anything is measured on it."""

    matmul_frac: Coefficient = Coefficient(value=0.75, spread=0.08)
    """Of the data-sheet FLOP rate, by the products of training and scoring."""
    attention_frac: Coefficient = Coefficient(value=0.35, spread=0.14)
    """Likewise, by attention over packed documents."""
    stream_frac: Coefficient = Coefficient(value=0.6, spread=0.24)
    """Of the data-sheet memory bandwidth, by what layers and head read and write."""
    memory_frac: Coefficient = Coefficient(value=0.87, spread=0.07)
    """Likewise, by long plain copies."""
    layer_pass_s: Coefficient = Coefficient(value=0.4e-3, spread=0.3e-3)
    """Of the host, to launch one layer's kernels once; hidden while the card has more to do."""
    decode_matmul_frac: Coefficient = Coefficient(value=0.5, spread=0.2)
    """Of the data-sheet FLOP rate, by products with one row for each running sequence."""
    decode_memory_frac: Coefficient = Coefficient(value=0.7, spread=0.2)
    """Of the data-sheet memory bandwidth, by reading weights and cache in the engine."""
    iteration_s: Coefficient = Coefficient(value=2.5e-3, spread=1.5e-3)
    """Of one engine iteration beside bytes, FLOPs and tokens: launch, sampler, scheduling."""
    token_s: Coefficient = Coefficient(value=8e-6, spread=6e-6)
    """Of each sampled token: its share of sampling, log-probs and the scheduler's loop over sequences."""
    push_s: Coefficient = Coefficient(value=1e-3, spread=1e-3)
    """Of each weight transfer, whatever it moves: address checks, dropping the prefix cache."""
    sample_s: Coefficient = Coefficient(value=3e-4, spread=3e-4)
    """Of each sample, in the time called other: a cheap reward, advantages, packing, logging."""
    link_frac: Coefficient = Coefficient(value=0.75, spread=0.1)
    """Of the data-sheet link, point to point."""
    collective_frac: Coefficient = Coefficient(value=0.6, spread=0.1)
    """Of the data-sheet link, in a ring."""
    context_bytes: Coefficient = Coefficient(value=1.0 * GIB, spread=0.5 * GIB)
    """CUDA context, libraries and their workspaces, outside of torch's allocator."""
    communicator_bytes: Coefficient = Coefficient(value=0.5 * GIB, spread=0.5 * GIB)
    """NCCL's buffers, where there is more than one GPU."""
    engine_bytes: Coefficient = Coefficient(value=0.12 * GIB, spread=0.1 * GIB)
    """CUDA graphs and persistent buffers of the engine, inside torch's allocator."""
    headroom_frac: Coefficient = Coefficient(value=0.05, spread=0.03)
    """Of the card, kept free for fragmentation. Not fitted: an allocator with room to spare holds more than it must."""
    gpu: str = ""
    """Whose measurements were used; empty = none."""

    def get(self, name: str) -> Coefficient:
        """By name."""
        found: Coefficient = getattr(self, name)
        return found

    def updated(self, found: Mapping[str, Coefficient], gpu: str) -> Coefficients:
        """The same with some replaced, of that card."""
        changes: dict[str, Any] = {**found, "gpu": gpu}
        return replace(self, **changes)

    @property
    def assumed_names(self) -> tuple[str, ...]:
        """Coefficients without a measurement."""
        return tuple(name for name in COEFFICIENT_NAMES if self.get(name).assumed)

    @property
    def fitted_names(self) -> tuple[str, ...]:
        """Coefficients with one."""
        return tuple(name for name in COEFFICIENT_NAMES if not self.get(name).assumed)


def process_memory(known: Coefficients) -> ProcessMemory:
    """What every process of a job holds."""
    return ProcessMemory(
        context_bytes=round(known.context_bytes.value),
        communicator_bytes=round(known.communicator_bytes.value),
        engine_bytes=round(known.engine_bytes.value),
    )


COEFFICIENT_NAMES = tuple(field.name for field in fields(Coefficients) if field.name != "gpu")


@dataclass(frozen=True, slots=True)
class Price:
    """How one kind of work is paid for: a share of a data-sheet rate, or seconds each."""

    coefficient: str
    rate: Literal["peak_flops_per_s", "memory_bytes_per_s"] | None
    """Field of the card; None = the coefficient is seconds for one."""


PRICES: Mapping[str, Price] = {
    "matmul_flops": Price("matmul_frac", "peak_flops_per_s"),
    "attention_flops": Price("attention_frac", "peak_flops_per_s"),
    "streamed_bytes": Price("stream_frac", "memory_bytes_per_s"),
    "copied_bytes": Price("memory_frac", "memory_bytes_per_s"),
    "decode_flops": Price("decode_matmul_frac", "peak_flops_per_s"),
    "decode_bytes": Price("decode_memory_frac", "memory_bytes_per_s"),
    "iterations": Price("iteration_s", None),
    "sampled_tokens": Price("token_s", None),
    "pushes": Price("push_s", None),
    "samples": Price("sample_s", None),
}
"""Kind of work -> its price. Seconds of the card are the sum over kinds."""
LINEAR_KINDS = tuple(PRICES)


def ideal_s(kind: str, gpu: Gpu) -> float:
    """Seconds of one unit at the data sheet's rate; 1 where the coefficient itself is seconds."""
    rate = PRICES[kind].rate
    return 1.0 if rate is None else 1.0 / float(getattr(gpu, rate))


def slowness(coefficient: Coefficient, kind: str) -> float:
    """What ``ideal_s`` is multiplied with: seconds are linear in it."""
    return coefficient.value if PRICES[kind].rate is None else 1.0 / coefficient.value


def seconds(work: Work, gpu: Gpu, known: Coefficients) -> float:
    """Time of ``work`` on one card: of the card, or of the host that launches it, whichever is longer."""
    card_s = 0.0
    for kind in LINEAR_KINDS:
        amount = getattr(work, kind)
        if amount:
            card_s += amount * ideal_s(kind, gpu) * slowness(known.get(PRICES[kind].coefficient), kind)
    return max(card_s, launch_s(work, known))


def launch_s(work: Work, known: Coefficients) -> float:
    """Time of the host to launch a pass's kernels."""
    return work.layer_passes * known.layer_pass_s.value
