"""What an estimate rests on, in sentences: the verdict, what was assumed, how far it is calibrated."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.catalogue import GIB, find_gpu
from megatron_rl.estimator.coefficients import Coefficients
from megatron_rl.estimator.deployment import Workload
from megatron_rl.estimator.ranking import Plan, Prices, why_not
from megatron_rl.estimator.strategies import Pool, Strategy
from megatron_rl.estimator.sync_bytes import planned_sync


def verdict_line(best: Plan, advice: str) -> str:
    """Whether it runs, in one sentence."""
    more = f". {advice[0].upper()}{advice[1:]}" if advice else ""
    if not best.fits:
        return f"does not fit: {why_not(best)}{more}"
    strategy, phase = best.fullest
    room = f"{phase.total_bytes / GIB:.1f} of {strategy.usable_bytes / GIB:.1f} usable GiB in {phase.phase}"
    if best.untrainable is not None:
        return f"fits on paper only ({room}): {best.untrainable}{more}"
    return f"fits: {room}"


def sync_line(strategy: Strategy) -> str:
    """The planned weight transfer of the busiest rank."""
    size = planned_sync(strategy.deployment, strategy.pool.gpu.gpus_per_node, plan=True)
    if size is None:
        return "no engine here"
    if size.received_bytes == size.copied_bytes == 0:
        return "nothing moves: the engine reads the actor's weights in place"
    source = "planned" if size.planned else "lower bound"
    return (
        f"{source}: {size.received_bytes / 1e9:.2f} GB over the link on the busiest rank "
        f"(bound {size.bound_bytes / 1e9:.2f}), {size.copied_bytes / 1e9:.2f} GB copied locally"
    )


def assumption_lines(config: RunConfig, workload: Workload, prices: Prices, pools: Sequence[Pool]) -> tuple[str, ...]:
    """Everything the user did not say, or might not expect."""
    full = workload.prompt_tokens == workload.max_prompt_tokens and workload.response_tokens == workload.max_response_tokens
    roles = ["actor", *(["critic of the same size"] if workload.uses_critic else [])]
    roles += ["reference"] if workload.uses_reference else []
    lines = [
        f"{workload.num_prompts} prompts, {workload.prompts_per_step} a step, {workload.samples_per_prompt} samples each: "
        f"{workload.steps_per_epoch} steps an epoch, {workload.total_steps} in all",
        f"{workload.prompt_tokens} prompt + {workload.response_tokens} response tokens on average"
        + (", the configured maxima: an upper bound" if full else ""),
        f"{config.algorithm.name}: {', '.join(roles)}; rewards from a function, in the time called other",
        "bf16 weights, nothing overlaps; critic and reference have the actor's layout unless theirs is set",
    ]
    lines += resampling_lines(config)
    if prices.assumed:
        shown = ", ".join(f"{name} {price:g}" for name, price in prices.by_card.items())
        lines.append(f"placeholder prices in USD per GPU hour ({shown}), not quotes; give price_per_hour")
    nodes = [pool for pool in pools if pool.num_gpus > pool.gpu.gpus_per_node]
    lines += [f"{pool.gpu.name}: nodes of {pool.gpu.gpus_per_node}, {pool.gpu.inter_node.name} between them" for pool in nodes]
    return tuple(lines)


def resampling_lines(config: RunConfig) -> tuple[str, ...]:
    """What the model leaves out where a step samples until enough groups differ."""
    if not config.algorithm.filter_groups.enable:
        return ()
    return (
        "algorithm.filter_groups: a step samples data.train_batch_size prompts once; what it samples beyond that "
        "(group/frac_kept) adds as much again to rollout and rewards",
    )


def unused_card_lines(gpu: str, pools: Sequence[Pool]) -> tuple[str, ...]:
    """A card that was asked for beside a device map that sends every role elsewhere."""
    cards = [pool.gpu.name for pool in pools]
    if not gpu or find_gpu(gpu).name in cards:
        return ()
    return (f"no role is on gpu={gpu}: device_map names {', '.join(cards)}",)


def calibration_lines(pools: Sequence[Pool], coefficients: Sequence[Coefficients]) -> tuple[str, ...]:
    """Which efficiencies come from measurements, of what, and which are assumed."""
    lines = []
    for pool, known in zip(pools, coefficients, strict=True):
        name = pool.gpu.name
        if not known.gpu:
            lines.append(f"{name}: no measurement at all, every efficiency is assumed")
            continue
        where = f"measured on {known.gpu}" if known.gpu == name else f"carried over from {known.gpu}, not measured on {name}"
        lines.append(f"{name}: {', '.join(known.fitted_names)} {where}")
        lines.append(f"{name}: assumed {', '.join(known.assumed_names)}")
    lines.append("all figures are model output; docs/cost_estimator.md shows them beside measurements")
    return tuple(lines)
