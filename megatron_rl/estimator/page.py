"""The tables of docs/cost_estimator.md, and putting them there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from megatron_rl.estimator import claims
from megatron_rl.estimator.coefficients import COEFFICIENT_NAMES, Coefficients
from megatron_rl.estimator.comparison import Comparison, compare
from megatron_rl.estimator.measured_run import MeasuredRun

MEMORY_GOAL_FRAC, TIME_GOAL_FRAC = 0.08, 0.15
"""Largest deviation aimed at, on records that were held out: of a run's peak, and of a phase's seconds."""


def tables(runs: Sequence[MeasuredRun], fitted: Mapping[str, Coefficients]) -> dict[str, str]:
    """Name of a marked block -> its Markdown."""
    rows = compare(runs, fitted)
    return {
        "coefficients": "\n".join(coefficient_table(card, known) for card, known in fitted.items()),
        "comparison": comparison_table(rows),
        "summary": summary(rows),
        "claims": claims.markdown(claims.claims()),
    }


def renewed(text: str, blocks: Mapping[str, str]) -> str:
    """The page with the blocks between ``<!-- name -->`` and ``<!-- end -->`` replaced."""
    for name, content in blocks.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert len(block.findall(text)) == 1, f"the page must have one block {name}"
        text = block.sub(lambda found, content=content: f"{found[1]}{content}{found[2]}", text)  # type: ignore[misc]
    return text


def coefficient_table(card: str, known: Coefficients) -> str:
    """Values with their spread and where they come from."""
    lines = [f"| {card} | value | spread | from |", "| --- | ---: | ---: | --- |"]
    for name in COEFFICIENT_NAMES:
        one = known.get(name)
        origin = "assumed" if one.assumed else f"{len(one.sources)} records" if len(one.sources) > 2 else ", ".join(one.sources)
        lines.append(f"| {name} | {one.value:.4g} | {one.spread:.2g} | {origin} |")
    return "\n".join(lines) + "\n"


def comparison_table(rows: Sequence[Comparison]) -> str:
    """Every phase of every record, those held out first."""
    order = ("held_out", "calibration", "context")
    lines = ["| record | use | phase | measured | model | deviation |", "| --- | --- | --- | ---: | ---: | ---: |"]
    for row in sorted(rows, key=lambda row: order.index(row.use)):
        use = "**held out**" if row.use == "held_out" else row.use
        lines.append(
            f"| {row.name} | {use} | {row.phase} | {row.measured:.3g} {row.quantity} | {row.predicted:.3g} {row.quantity} "
            f"| {row.deviation_frac:+.1%} |"
        )
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Comparison]) -> str:
    """How many held-out figures lie within the goals, and the worst of them."""
    held = [row for row in rows if row.use == "held_out"]
    if not held:
        return "No measurement of this trainer has been held out yet, so the accuracy of the model is not known.\n"
    lines = []
    for what, goal, chosen in (
        ("peaks of memory", MEMORY_GOAL_FRAC, [row for row in held if row.phase == "peak"]),
        ("phase times", TIME_GOAL_FRAC, [row for row in held if row.quantity == "s" and row.phase not in ("sync", "other")]),
    ):
        if not chosen:
            continue
        inside = sum(abs(row.deviation_frac) <= goal for row in chosen)
        worst = max(chosen, key=lambda row: abs(row.deviation_frac))
        lines.append(
            f"Held out: {inside} of {len(chosen)} {what} lie within the goal of {goal:.0%}; the worst is "
            f"{worst.deviation_frac:+.1%} ({worst.name}, {worst.phase})."
        )
    return "\n".join(lines) + "\n"
