"""Figures others reported for other software, beside this model: a sanity check of its scale, no test of its accuracy."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_rl.estimator import CostEstimate, estimate_cost
from megatron_rl.estimator.cost import RankedStrategy

_REPORT = "throughput report, 4 x A100-80GB, 7B PPO, 128 x 512"
_COST = "cost report, 7B, strong scaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One reported figure. ``deviation_frac`` is the model's, relative to the report."""

    source: str
    what: str
    reported: float
    predicted: float

    @property
    def deviation_frac(self) -> float:
        """Of the prediction, relative to the report."""
        return self.predicted / self.reported - 1


def claims() -> list[Claim]:
    """The reports' main figures; the fastest strategy on paper stands in for what they ran, offloading included."""
    report = estimate_cost("7B", "A100-80GB", 4, 128)
    phases = _fastest(report).phase_seconds
    total_s = sum(phases.values())
    shares = (
        ("experience collection, share", 0.41, phases["rollout"] + phases["scoring"]),
        ("actor and critic updates, share", 0.45, phases["update"]),
        ("data loading and buffers, share", 0.13, phases["other"] + phases["switch-over"]),
    )
    rows = [
        Claim(source=_REPORT, what="one iteration, s", reported=442.7, predicted=total_s),
        Claim(source=_REPORT, what="generation, tokens/s", reported=2184, predicted=128 * 512 / phases["rollout"]),
        Claim(source=_REPORT, what="actor memory per card, GB", reported=58.2, predicted=_actor_gb(report)),
    ]
    rows += [Claim(source=_REPORT, what=what, reported=share, predicted=s / total_s) for what, share, s in shares]
    four, eight, sixteen = (_fastest(estimate_cost("7B", "A100-80GB", n, 128)).step_s for n in (4, 8, 16))
    rows.append(Claim(source=_COST, what="efficiency 4 -> 8 cards", reported=0.87, predicted=four / eight / 2))
    rows.append(Claim(source=_COST, what="efficiency 4 -> 16 cards", reported=0.76, predicted=four / sixteen / 4))
    return rows


def _fastest(answer: CostEstimate) -> RankedStrategy:
    rows = (answer.recommended_strategy, *answer.alternatives)
    return min((row for row in rows if row.fits and not row.label.startswith("FSDP")), key=lambda row: row.step_s)


def _actor_gb(answer: CostEstimate) -> float:
    """Of the recommended strategy's update: weights, gradients, optimizer and activations, in 10^9 bytes."""
    parts = answer.memory_gib[0].phases["update actor"]
    return sum(size for name, size in parts.items() if name.startswith("actor ")) * 1024**3 / 1e9


def markdown(rows: list[Claim]) -> str:
    """The table of the page."""
    lines = ["| report | figure | reported | model | deviation |", "| --- | --- | ---: | ---: | ---: |"]
    lines += [f"| {r.source} | {r.what} | {r.reported:g} | {r.predicted:.3g} | {r.deviation_frac:+.0%} |" for r in rows]
    return "\n".join(lines) + "\n"
