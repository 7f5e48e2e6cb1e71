"""Ratios between our LM-head ops and their peers."""

from __future__ import annotations

from benchmarks.harness import Row
from benchmarks.head_peers import LIGER, UNFUSED, HeadComparison, compare_heads, comparison_table


def row(variant: str, ms: float | None, peak_gib: float | None = None, case: str = "head") -> Row:
    return Row(case=case, variant=variant, ms=ms, peak_gib=peak_gib)


def test_comparison_takes_the_fastest_variant_and_matches_hand_computed() -> None:
    rows = [
        row("linear_logprob", 5.0, 2.0),
        row("linear_logprob 4096x2048", 4.0, 1.0),
        row("linear_logprob", 1.0, 1.0, case="another"),
        row(LIGER, 6.0),
        row(UNFUSED, 10.0, 20.0),
        row("linear_token_loss", None),
    ]
    assert compare_heads(rows, "head") == [
        HeadComparison(case="head", op="linear_logprob", peer=UNFUSED, speedup=2.5, memory_ratio=20.0),
        HeadComparison(case="head", op="linear_logprob", peer=LIGER, speedup=1.5, memory_ratio=None),
    ]
    assert comparison_table(compare_heads(rows, "head")).splitlines()[2] == (
        "| head | linear_logprob | torch, f32 logits | 2.50x | 20.00x |"
    )
