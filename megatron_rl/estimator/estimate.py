"""The estimate: search every pool of cards, rank what fits, explain the winner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.calibration import fit
from megatron_rl.estimator.catalogue import GIB
from megatron_rl.estimator.coefficients import COEFFICIENT_NAMES, Coefficients
from megatron_rl.estimator.cost import CostEstimate, PoolMemory, RankedStrategy, Rejected
from megatron_rl.estimator.deployment import Workload
from megatron_rl.estimator.explain import (
    assumption_lines,
    calibration_lines,
    sync_line,
    unused_card_lines,
    verdict_line,
)
from megatron_rl.estimator.fitted import fitted_coefficients
from megatron_rl.estimator.fsdp import fsdp_deployment, fsdp_memory, fsdp_times
from megatron_rl.estimator.measured_run import measured_runs
from megatron_rl.estimator.measurements import own_records
from megatron_rl.estimator.offloading import TRAINABLE_OFFLOADS
from megatron_rl.estimator.parameters import total_parameters
from megatron_rl.estimator.pools import make_pools
from megatron_rl.estimator.ranking import Plan, Prices, rank_row, undominated, why_not
from megatron_rl.estimator.strategies import Search, Strategy
from megatron_rl.estimator.workload import limits_of, pins_of, workload_of

NUM_ALTERNATIVES = 8
GROWTH = (2, 4, 8, 16, 32)
"""Multiples of the cards that are tried where nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked beside the run's configuration. Lengths are means, in tokens; None = the configured maxima."""

    gpu: str
    num_gpus: int
    device_map: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float | Mapping[str, float] | None = None
    """USD per GPU hour, for all cards or by kind; None = the catalogue's placeholder."""
    num_prompts: int | None = None
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    measurements: Path | None = None
    """More records than the shipped ones."""
    typed: frozenset[str] = frozenset()
    """Dotted keys the user set: the search leaves them alone."""


def estimate(config: RunConfig, request: Request) -> CostEstimate:
    """Estimate a run.

    Raises:
        ConfigError: what was asked cannot be, naming the key and the nearest names.
    """
    _check_counts(request)
    workload = workload_of(
        config,
        num_prompts=request.num_prompts,
        prompt_tokens=request.prompt_tokens,
        response_tokens=request.response_tokens,
    )
    pools = make_pools(request.gpu, request.num_gpus, request.device_map, workload)
    prices = Prices.of(request.price_per_hour, pools)
    runs = measured_runs(own_records(request.measurements))
    pins, limits = pins_of(config, request.typed), limits_of(config)
    searches = [
        Search(
            model=config.model,
            workload=workload,
            pool=pool,
            coefficients=fit(runs, pool.gpu, fitted_coefficients(pool.gpu)),
            pins=pins,
            limits=limits,
        )
        for pool in pools
    ]
    plans, rejected = _plans(searches)
    if not plans:
        raise ConfigError([f"num_gpus={request.num_gpus}: {one.label} {one.reason}" for one in rejected])
    rejected += [Rejected(label=plan.label, reason=why_not(plan)) for plan in plans if not plan.fits]
    best, *rest = [plan for plan in plans if plan.fits] or plans[:1]
    best = best.planned(searches[0])
    rows = [rank_row(plan, best, workload, prices) for plan in (best, *rest[: NUM_ALTERNATIVES - 1])]
    if len(pools) == 1 and best.fits:
        rows.append(_fsdp_row(searches[0], best, workload, prices))
    advice = "" if best.fits and best.untrainable is None else _smallest_fit(searches)
    answer = _answer(config, workload, searches, best, rows, rejected, prices, advice)
    return replace(answer, assumptions=(*answer.assumptions, *unused_card_lines(request.gpu, pools)))


def _check_counts(request: Request) -> None:
    counts = {
        "num_gpus": request.num_gpus,
        "dataset_size": request.num_prompts,
        "prompt_tokens": request.prompt_tokens,
        "response_tokens": request.response_tokens,
    }
    problems = [
        f"{key}={count!r}: must be a whole number above 0"
        for key, count in counts.items()
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1)
    ]
    if problems:
        raise ConfigError(problems)


def _plans(searches: list[Search]) -> tuple[list[Plan], list[Rejected]]:
    """One strategy for each pool: every one of the actor's, with the best of the others'. Best first."""
    found: list[list[Strategy]] = []
    rejected: list[Rejected] = []
    for search in searches:
        strategies, impossible = search.run()
        found.append(undominated(strategies))
        rejected += [Rejected(label=one.label, reason=one.reason) for one in impossible]
    if any(not strategies for strategies in found):
        return [], rejected
    others = [min(strategies, key=lambda s: (not s.fits, s.step_s)) for strategies in found[1:]]
    plans = [Plan((strategy, *others)) for strategy in found[0]]
    return sorted(plans, key=lambda p: (not p.fits, p.untrainable is not None, p.step_s, p.peak_bytes)), rejected


def _smallest_fit(searches: list[Search]) -> str:
    """How many of the same cards this version would need."""
    search = searches[0]
    if len(searches) > 1 or search.model.moe is not None or search.model.mla is not None:
        return ""
    for factor in GROWTH:
        pool = replace(search.pool, num_gpus=search.pool.num_gpus * factor)
        found, _ = replace(search, pool=pool, offloads=TRAINABLE_OFFLOADS).run()
        fitting = [strategy for strategy in found if strategy.fits]
        if fitting:
            best = min(fitting, key=lambda s: s.step_s)
            return f"{pool.num_gpus} x {pool.gpu.name} would fit: {Plan((best,)).label}"
    return f"not even {search.pool.num_gpus * GROWTH[-1]} of these cards would do; take cards with more memory"


def _fsdp_row(search: Search, best: Plan, workload: Workload, prices: Prices) -> RankedStrategy:
    base = best.strategies[0]
    rollout = next(phase for phase in base.memory if phase.phase == "rollout")
    deployment = fsdp_deployment(base.deployment)
    strategy = Strategy(
        pool=base.pool,
        deployment=deployment,
        memory=fsdp_memory(deployment, rollout),
        times=fsdp_times(deployment, workload, base.pool.gpu, search.coefficients),
        usable_bytes=base.usable_bytes,
    )
    row = rank_row(Plan((strategy,)), best, workload, prices)
    return replace(
        row,
        label=f"FSDP over {base.pool.num_gpus}, full recompute",
        overrides=(),
        trainable=False,
        why=f"FSDP is not part of this version; {row.why}",
    )


def _answer(
    config: RunConfig,
    workload: Workload,
    searches: list[Search],
    best: Plan,
    rows: list[RankedStrategy],
    rejected: list[Rejected],
    prices: Prices,
    advice: str,
) -> CostEstimate:
    pools = [search.pool for search in searches]
    coefficients: list[Coefficients] = [search.coefficients for search in searches]
    return CostEstimate(
        model=config.model.name,
        parameters=total_parameters(config.model),
        algorithm=config.algorithm.name,
        gpus=" + ".join(f"{pool.num_gpus} x {pool.gpu.name}" for pool in pools),
        num_gpus=sum(pool.num_gpus for pool in pools),
        fits=best.fits and best.untrainable is None,
        verdict=verdict_line(best, advice),
        peak_mem_per_gpu=rows[0].peak_mem_gib,
        time_per_epoch=rows[0].time_per_epoch,
        total_gpu_hours=rows[0].total_gpu_hours,
        cost=rows[0].cost,
        price_per_hour=prices.by_card,
        price_is_assumed=prices.assumed,
        steps_per_epoch=workload.steps_per_epoch,
        total_steps=workload.total_steps,
        recommended_strategy=rows[0],
        alternatives=tuple(rows[1:]),
        rejected=tuple(rejected),
        memory_gib=tuple(_pool_memory(strategy) for strategy in best.strategies),
        step_seconds=best.phases,
        step_spread_s=_step_spread_s(searches, best),
        time_parts=tuple((t.phase, t.role, t.component, t.seconds) for s in best.strategies for t in s.times),
        sync=sync_line(best.strategies[0]),
        assumptions=assumption_lines(config, workload, prices, pools),
        calibration=calibration_lines(pools, coefficients),
    )


def _step_spread_s(searches: list[Search], best: Plan) -> float:
    """Each coefficient moved by its spread, one after the other; the changes of the step add up as independent errors do."""
    squares = 0.0
    for number, (search, strategy) in enumerate(zip(searches, best.strategies, strict=True)):
        for name in COEFFICIENT_NAMES:
            one = search.coefficients.get(name)
            moved = search.coefficients.updated({name: replace(one, value=one.value + one.spread)}, search.coefficients.gpu)
            times = replace(search, coefficients=moved).times(strategy.deployment, plan=True)
            varied = [replace(s, times=times) if i == number else s for i, s in enumerate(best.strategies)]
            squares += (Plan(tuple(varied)).step_s - best.step_s) ** 2
    return sqrt(squares)


def _pool_memory(strategy: Strategy) -> PoolMemory:
    phases: dict[str, dict[str, float]] = {
        phase.phase: {f"{part.role} {part.kind}": part.size_bytes / GIB for part in phase.parts} for phase in strategy.memory
    }
    return PoolMemory(
        gpu=strategy.pool.gpu.name,
        num_gpus=strategy.pool.num_gpus,
        card_gib=strategy.pool.gpu.memory_bytes / GIB,
        usable_gib=strategy.usable_bytes / GIB,
        phases=phases,
    )
