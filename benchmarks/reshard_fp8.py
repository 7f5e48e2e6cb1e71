"""Weights that arrive in block-scaled FP8, on buffers of the real sizes: seconds and bytes, against the same in bf16."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.reshard_figures import Figure, Timing, time_runs
from benchmarks.reshard_layouts import PAIRS, slowest, values_of
from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import padded_vocab_size
from megatron_rl.resharding.block_quantiser import BlockQuantiser
from megatron_rl.resharding.executor import ReshardExecutor
from megatron_rl.resharding.fabric import CPU_HOST, H200_NODE, predict_seconds
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.quantisation import (
    SCALE_SUFFIX,
    counted_together,
    of_scales,
    only,
    plan_quantised,
    scale_tensors,
    split_quantised,
)
from megatron_rl.resharding.verify import allocate_matrices, fragment_view, verify_transfer
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors


def measure_quantised(
    model: ModelConfig,
    pair: str,
    rank: int,
    group: dist.ProcessGroup | None,
    device: torch.device,
    budget_bytes: int,
    repeats: int,
) -> list[Figure]:
    """Linear weights of a pair in bf16, then in FP8 with their scales. Collectives: ``group``."""
    train, rollout = PAIRS[pair]
    quantised, _ = split_quantised(logical_tensors(model))
    stored = only(megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor)), quantised)
    wanted = only(vllm_rules_layout(model, rollout), quantised)
    sides = (quantised, stored, train.ranks, wanted, range(rollout.world_size))
    both = plan_quantised(*sides, budget_bytes=budget_bytes)
    with device:
        sources, plain = (allocate_matrices(side(rank), torch.bfloat16) for side in (stored, wanted))
    for f in stored(rank):
        fragment_view(f, sources[f.buffer]).copy_(values_of(f.tensor, (f.start, f.stop), device))
    in_bf16 = plan_reshard(*sides, itemsize=2, budget_bytes=budget_bytes)
    copied = ReshardExecutor(in_bf16, rank, sources, plain, group, budget_bytes)
    timing = slowest(time_runs(copied.run, device, repeats), group)
    figures = [_figure(model, pair, "linear weights, bf16", in_bf16, (in_bf16,), timing, device)]
    del copied
    values = {name: torch.zeros_like(matrix, dtype=torch.float8_e4m3fn) for name, matrix in plain.items()}
    scales = {
        name + SCALE_SUFFIX: torch.zeros([-(-n // 128) for n in matrix.shape], device=device) for name, matrix in plain.items()
    }
    plain.clear()
    quantiser = BlockQuantiser(both.values, rank, sources)
    executors = [
        ReshardExecutor(both.values, rank, sources, values, group, budget_bytes, quantiser=quantiser),
        ReshardExecutor(both.scales, rank, quantiser.scales, scales, group, budget_bytes),
    ]
    timing = slowest(time_runs(lambda: [executor.run() for executor in executors], device, repeats), group)
    held, needed = of_scales(stored, quantised)(rank), of_scales(wanted, quantised)(rank)
    verify_transfer(quantised, stored(rank), quantiser.quantised(), wanted(rank), values, group)
    verify_transfer(scale_tensors(quantised), held, quantiser.scales, needed, scales, group)
    plans = (both.values, both.scales)
    whole = counted_together(plans)
    return [*figures, _figure(model, pair, "linear weights, quantised to FP8", whole, plans, timing, device, correct=True)]


def _figure(
    model: ModelConfig,
    pair: str,
    way: str,
    whole: ReshardPlan,
    plans: tuple[ReshardPlan, ...],
    timing: Timing,
    device: torch.device,
    *,
    correct: bool | None = None,
) -> Figure:
    costs = whole.costs.values()
    fabric = H200_NODE if device.type == "cuda" else CPU_HOST
    return Figure(
        model=model.name,
        case=pair,
        way=way,
        seconds=timing.seconds,
        low_s=timing.low_s,
        high_s=timing.high_s,
        peak_bytes=timing.peak_bytes,
        copied_bytes=max(c.copied_bytes for c in costs),
        received_bytes=max(c.received_bytes for c in costs),
        bound_bytes=max(c.bound_bytes for c in costs),
        predicted_s=sum(predict_seconds(plan, fabric) for plan in plans),
        correct=correct,
    )
