"""The numbers of the time and memory model that neither shapes nor data sheets give."""

from __future__ import annotations

from dataclasses import dataclass, fields

from megatron_rl.estimator.catalogue import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One number of the model and where it comes from. Example: ``Coefficient(value=0.38, sources=("run_a", "run_b"))``."""

    value: float
    sources: tuple[str, ...] = ()
    """Names of measurements; empty = assumed."""

    @property
    def assumed(self) -> bool:
        """No measurement stands behind it."""
        return not self.sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Everything of the time and memory model that cannot be derived from shapes and data sheets."""

    update_top_frac: Coefficient = Coefficient(value=0.4)
    """Of the data-sheet peak, with endless micro-batches."""
    update_half_tokens: Coefficient = Coefficient(value=8000.0)
    """Micro-batch at which half of that is reached."""
    score_per_update: Coefficient = Coefficient(value=1.0)
    """Efficiency of scoring over that of the update."""
    prefill_frac: Coefficient = Coefficient(value=0.4)
    """Of the data-sheet peak."""
    decode_iteration_s: Coefficient = Coefficient(value=1.5e-3)
    """Of one engine iteration, beside bytes and tokens."""
    decode_token_s: Coefficient = Coefficient(value=20e-6)
    """Of each token of an iteration: sampling, log-probs, scheduling."""
    memory_frac: Coefficient = Coefficient(value=0.85)
    """Of the data-sheet memory bandwidth."""
    link_frac: Coefficient = Coefficient(value=0.75)
    """Of the data-sheet link, point to point."""
    collective_frac: Coefficient = Coefficient(value=0.6)
    """Of the data-sheet link, in a ring."""
    other_frac: Coefficient = Coefficient(value=0.05)
    """Of the step: data, rewards, waiting, logging."""
    context_bytes: Coefficient = Coefficient(value=2.0 * GIB)
    cuda_graph_bytes: Coefficient = Coefficient(value=1.0 * GIB)
    headroom_frac: Coefficient = Coefficient(value=0.05)
    """Of the card, kept free for fragmentation."""
    gpu: str = ""
    """Whose measurements were used; empty = none."""

    def update_frac(self, micro_batch_tokens: int) -> float:
        """Fraction of the data-sheet peak that forward and backward reach."""
        half = self.update_half_tokens.value
        return self.update_top_frac.value * micro_batch_tokens / (micro_batch_tokens + half)

    @property
    def assumed_names(self) -> tuple[str, ...]:
        """Coefficients without a measurement."""
        return tuple(f.name for f in fields(self) if f.name != "gpu" and getattr(self, f.name).assumed)

    @property
    def fitted_names(self) -> tuple[str, ...]:
        """Coefficients with one."""
        return tuple(f.name for f in fields(self) if f.name != "gpu" and not getattr(self, f.name).assumed)
