"""Plans (one strategy per pool of cards), their rank, their price, and the reason in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from megatron_rl.config.errors import ConfigError
from megatron_rl.estimator.catalogue import GIB, abbreviates, find_gpu
from megatron_rl.estimator.cost import RankedStrategy, gpu_hours, hours
from megatron_rl.estimator.deployment import Deployment, Workload
from megatron_rl.estimator.memory_part import PhaseMemory
from megatron_rl.estimator.offloading import offload_of, offload_overrides
from megatron_rl.estimator.step_time import phase_seconds
from megatron_rl.estimator.strategies import Pool, Search, Strategy

WORTHWHILE = 0.98
"""A strategy that offloads more must take at most this share of the time to be listed beside one that offloads less."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A strategy for every pool; the actor's pool comes first."""

    strategies: tuple[Strategy, ...]

    @property
    def fits(self) -> bool:
        """On every pool."""
        return all(strategy.fits for strategy in self.strategies)

    @property
    def untrainable(self) -> str | None:
        """Why this version cannot run it; None = it can."""
        if len(self.strategies) > 1:
            return "roles on cards of their own are not part of this version"
        return self.strategies[0].untrainable

    @property
    def fullest(self) -> tuple[Strategy, PhaseMemory]:
        """The strategy and phase that come closest to their card's limit."""
        strategy = max(self.strategies, key=lambda s: s.peak.total_bytes / s.usable_bytes)
        return strategy, strategy.peak

    @property
    def peak_bytes(self) -> int:
        """On the fullest card of all."""
        return max(strategy.peak.total_bytes for strategy in self.strategies)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of one step by phase."""
        return phase_seconds([strategy.times for strategy in self.strategies])

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return sum(self.phases.values())

    @property
    def label(self) -> str:
        """In a few words."""
        return " | ".join(deployment_label(strategy.deployment) for strategy in self.strategies)

    def planned(self, search: Search) -> Plan:
        """The same with the transfer's bytes from the planner instead of the closed form."""
        first, *others = self.strategies
        times = search.times(first.deployment, plan=True)
        return Plan((replace(first, times=times), *others))


@dataclass(frozen=True, slots=True)
class Prices:
    """USD per GPU hour by full name of the card."""

    by_card: Mapping[str, float]
    assumed: bool
    """Some are the catalogue's placeholders."""

    @classmethod
    def of(cls, given: float | Mapping[str, float] | None, pools: Sequence[Pool]) -> Prices:
        """Prices of the pools' cards; a short name prices every card that it abbreviates and that has no price of its own.

        Raises ConfigError for a price that is not a number above 0, or of an unknown card.
        """
        by_name = _named_prices(given, pools)
        wrong = [
            f"price_per_hour={price!r}: must be a number above 0, in USD per GPU hour"
            for price in by_name.values()
            if isinstance(price, bool) or not isinstance(price, float | int) or not 0 < price < math.inf
        ]
        if wrong:
            raise ConfigError(wrong)
        cards = {pool.gpu.name: pool.gpu for pool in pools}
        prices = {name: by_name.get(name, card.assumed_usd_per_hour) for name, card in cards.items()}
        return cls(prices, assumed=any(name not in by_name for name in cards))

    def cost(self, plan: Plan, plan_hours: float) -> float:
        """USD of so many hours on all cards."""
        return sum(plan_hours * s.pool.num_gpus * self.by_card[s.pool.gpu.name] for s in plan.strategies)


def _named_prices(given: float | Mapping[str, float] | None, pools: Sequence[Pool]) -> dict[str, float]:
    """Full name of a card -> its price, as far as they are given."""
    if given is None:
        return {}
    cards = [pool.gpu.name for pool in pools]
    if not isinstance(given, Mapping):
        return dict.fromkeys(cards, given)
    known = {find_gpu(name, "price_per_hour").name: price for name, price in given.items()}
    short = {card: price for name, price in given.items() for card in cards if abbreviates(name, card)}
    return short | known


def deployment_label(deployment: Deployment) -> str:
    """Example: ``TP2 PP1 DP2, engine TP2 x DP2, full recompute, micro-batch 16384``."""
    role, engine = deployment.roles[0], deployment.engine
    layout = role.layout
    words = [f"TP{layout.tensor} PP{layout.pipeline} DP{layout.data}" + (f" EP{layout.expert}" if layout.expert > 1 else "")]
    words += [f"engine TP{engine.tensor} x DP{engine.data}"] if engine is not None else []
    words += [f"{role.recompute} recompute"] if role.recompute != "none" else []
    words.append(f"micro-batch {role.micro_batch_tokens}")
    words += [
        f"{other.name} TP{other.layout.tensor} PP{other.layout.pipeline} DP{other.layout.data}"
        for other in deployment.roles[1:]
        if other.layout != layout
    ]
    words += [f"offload {offload_of(deployment)}"] if offload_of(deployment) != "none" else []
    return ", ".join(words)


def overrides_of(deployment: Deployment) -> tuple[str, ...]:
    """What to type to run a deployment of this version."""
    overrides = []
    for role in deployment.roles:
        layout = role.layout
        if role.name == "reference":
            continue  # takes the actor's layout, or that which was typed
        key = role.name
        overrides += [f"{key}.parallel.tensor={layout.tensor}", f"{key}.parallel.pipeline={layout.pipeline}"]
        overrides += [f"{key}.parallel.sequence_parallel=true"] if layout.sequence_parallel else []
        overrides += [f"{key}.recompute.granularity={role.recompute}"] if role.recompute != "none" else []
        overrides.append(f"{key}.ppo_max_token_len_per_gpu={role.micro_batch_tokens}")
    if deployment.engine is not None:
        overrides.append(f"rollout.tensor_parallel_size={deployment.engine.tensor}")
        overrides.append(f"rollout.kv_cache_gib={max(0.01, deployment.engine.kv_cache_bytes / GIB):.2f}")
    return tuple([*overrides, *offload_overrides(deployment)])


def undominated(strategies: Iterable[Strategy]) -> list[Strategy]:
    """Drop what offloads more than another fitting variant of its layout without being faster for it."""
    kept: list[Strategy] = []
    for strategy in strategies:  # less offloading comes first
        layout = strategy.deployment.roles[0].layout
        lighter = [s for s in kept if s.fits and s.deployment.roles[0].layout == layout]
        if not lighter or (strategy.fits and strategy.step_s < WORTHWHILE * min(s.step_s for s in lighter)):
            kept.append(strategy)
    return kept


def why_not(plan: Plan) -> str:
    """Which phase does not fit, by how much, and what takes the most of it."""
    strategy, phase = plan.fullest
    largest = max(phase.parts, key=lambda part: part.size_bytes)
    return (
        f"{phase.phase} needs {phase.total_bytes / GIB:.1f} GiB of {strategy.usable_bytes / GIB:.1f} usable on "
        f"{strategy.pool.gpu.name}; most of it {largest.role} {largest.kind} ({largest.size_bytes / GIB:.1f} GiB)"
    )


def why(plan: Plan, best: Plan) -> str:
    """Why a plan has its rank."""
    if plan is best:
        if not plan.fits:
            return f"closest to fitting: {why_not(plan)}"
        return "fastest of what fits" + ("" if plan.untrainable else " and this version trains")
    ours, theirs = plan.phases, best.phases
    slower = {phase: ours[phase] - theirs[phase] for phase in ours}
    worst = max(slower, key=lambda phase: abs(slower[phase]))
    words = f"{worst} {slower[worst]:+.1f} s a step" if abs(slower[worst]) >= 0.05 else "as fast"
    gap_gib = (plan.peak_bytes - best.peak_bytes) / GIB
    words += f", peak {gap_gib:+.1f} GiB"
    words = words if plan.fits else f"does not fit: {why_not(plan)}"
    return words if plan.untrainable is None else f"{words}; {plan.untrainable}"


def rank_row(plan: Plan, best: Plan, workload: Workload, prices: Prices) -> RankedStrategy:
    """The plan with its price."""
    num_gpus = sum(strategy.pool.num_gpus for strategy in plan.strategies)
    total_h = hours(plan.step_s, workload.total_steps)
    return RankedStrategy(
        label=plan.label,
        overrides=overrides_of(plan.strategies[0].deployment) if plan.fits and plan.untrainable is None else (),
        fits=plan.fits,
        trainable=plan.untrainable is None,
        peak_mem_gib=plan.peak_bytes / GIB,
        peak_phase=plan.fullest[1].phase,
        step_s=plan.step_s,
        phase_seconds=plan.phases,
        time_per_epoch=hours(plan.step_s, workload.steps_per_epoch),
        total_gpu_hours=gpu_hours(plan.step_s, workload.total_steps, num_gpus),
        cost=prices.cost(plan, total_h),
        why=why(plan, best),
    )
