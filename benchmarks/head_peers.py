"""Our LM-head ops beside their peers, from rows measured in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import Row

OPS = ("linear_token_loss", "half linear_token_loss", "linear_logprob")
UNFUSED, LIGER, MEGATRON = "torch, f32 logits", "liger-kernel", "Megatron-Core fused cross-entropy"
PEERS = (UNFUSED, MEGATRON, LIGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadComparison:
    """The fastest variant of an op against a peer; ratios above 1 speak for the op, None where one was not measured."""

    case: str
    op: str
    peer: str
    speedup: float | None
    """Time of the peer over that of the op."""
    memory_ratio: float | None
    """Peak memory of the peer over that of the op."""


def compare_heads(rows: Sequence[Row], case: str) -> list[HeadComparison]:
    """Every op against every peer of a case."""
    rows = [row for row in rows if row.case == case]
    found = []
    for op in OPS:
        for peer in PEERS:
            ours, theirs = best(rows, op), best(rows, peer)
            if ours is None or theirs is None:
                continue
            found.append(
                HeadComparison(
                    case=case,
                    op=op,
                    peer=peer,
                    speedup=_ratio(theirs.ms, ours.ms),
                    memory_ratio=_ratio(theirs.peak_gib, ours.peak_gib),
                )
            )
    return found


def best(rows: Sequence[Row], prefix: str) -> Row | None:
    """Fastest measured variant whose name starts with ``prefix``."""
    timed = [row for row in rows if row.ms is not None and row.variant.startswith(prefix)]
    return min(timed, key=lambda row: row.ms or 0.0, default=None)


def comparison_table(comparisons: Sequence[HeadComparison]) -> str:
    """As Markdown."""
    lines = ["| case | op | against | time of it over ours | memory of it over ours |", "| --- | --- | --- | --- | --- |"]
    for one in comparisons:
        ratios = ("" if ratio is None else f"{ratio:.2f}x" for ratio in (one.speedup, one.memory_ratio))
        lines.append(f"| {one.case} | {one.op} | {one.peer} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None
