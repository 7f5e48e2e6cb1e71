"""Transfers between layouts on buffers of the real sizes: any number of ranks, no engine and no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.reshard_figures import Figure, Timing, time_runs
from megatron_rl.config.model import ModelConfig
from megatron_rl.ops import prepare_strided_copies
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.aliasing import with_aliases
from megatron_rl.resharding.boxes import Box
from megatron_rl.resharding.executor import ReshardExecutor, aliased_runs
from megatron_rl.resharding.fabric import CPU_HOST, H200_NODE, predict_seconds
from megatron_rl.resharding.placement import placements
from megatron_rl.resharding.plan import Message, ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.spec import Fragment, LayoutFn
from megatron_rl.resharding.transports.selection import TransportName
from megatron_rl.resharding.verify import allocate_buffers, fragment_view, verify_transfer
from megatron_rl.weights.names import logical_tensors

PAIRS = {
    "tp1_to_tp1": (ParallelLayout(), RolloutLayout()),
    "tp2_to_tp2": (ParallelLayout(tensor=2), RolloutLayout(tensor=2)),
    "tp2_to_tp1dp2": (ParallelLayout(tensor=2), RolloutLayout(data=2)),
    "tp1dp2_to_tp2": (ParallelLayout(data=2), RolloutLayout(tensor=2)),
    "pp2_to_tp2": (ParallelLayout(pipeline=2), RolloutLayout(tensor=2)),
    "pp2_to_tp1dp2": (ParallelLayout(pipeline=2), RolloutLayout(data=2)),
    "ep2_to_tp2": (ParallelLayout(data=2, expert=2, expert_tensor=1), RolloutLayout(tensor=2)),
    "tp4_to_tp2dp2": (ParallelLayout(tensor=4), RolloutLayout(tensor=2, data=2)),
    "tp2pp2_to_tp4": (ParallelLayout(tensor=2, pipeline=2), RolloutLayout(tensor=4)),
    "tp8_to_tp2dp4": (ParallelLayout(tensor=8), RolloutLayout(tensor=2, data=4)),
    "tp4pp2_to_tp8": (ParallelLayout(tensor=4, pipeline=2), RolloutLayout(tensor=8)),
}
"""Name -> training and rollout layout over the same ranks."""


def pairs_of(world_size: int, model: ModelConfig) -> list[str]:
    """Pairs that fill a number of ranks; expert parallelism for models with experts only."""
    fitting = [name for name, (train, _) in PAIRS.items() if train.world_size == world_size]
    return [name for name in fitting if model.moe is not None or not name.startswith("ep")]


@dataclass(frozen=True)
class Transfer:
    """A planned pair with this rank's buffers on both sides."""

    model: ModelConfig
    pair: str
    plan: ReshardPlan
    stored: LayoutFn
    wanted: LayoutFn
    sources: dict[str, Tensor]
    destinations: dict[str, Tensor]

    @classmethod
    def build(
        cls, model: ModelConfig, pair: str, rank: int, device: torch.device, dtype: torch.dtype, budget_bytes: int
    ) -> Transfer:
        """Plan it in the rank orders of a run on one node, and allocate the buffers; replicas hold equal values."""
        train, rollout = PAIRS[pair]
        placed = placements(model, train, rollout, train.world_size)["run"]
        stored, wanted = placed.source, placed.destination
        plan = plan_reshard(
            logical_tensors(model),
            stored,
            train.ranks,
            wanted,
            placed.rollout.ranks,
            itemsize=dtype.itemsize,
            budget_bytes=budget_bytes,
        )
        with device:
            sources = allocate_buffers(stored(rank), dtype, 0.0)
            destinations = allocate_buffers(wanted(rank), dtype, -1.0)
        for f in stored(rank):
            fragment_view(f, sources[f.buffer]).copy_(values_of(f.tensor, (f.start, f.stop), device))
        return cls(model, pair, plan, stored, wanted, sources, destinations)

    def sharing(self, rank: int) -> Transfer:
        """The same with every destination that can be a view of a source being one, as the engine's would."""
        plan = with_aliases(self.plan)
        runs = aliased_runs(plan, rank, self.sources)
        shared = {name: run[: self.destinations[name].numel()] for name, run in runs.items()}
        return replace(self, plan=plan, destinations={**self.destinations, **shared})


def measure_all(
    transfer: Transfer,
    rank: int,
    group: dist.ProcessGroup | None,
    budget_bytes: int,
    repeats: int,
    transport: TransportName = "auto",
) -> list[Figure]:
    """Weights copied, weights shared where possible, whole tensors broadcast. Collectives: ``group``."""
    arguments = (rank, group, budget_bytes, repeats, transport)
    copied = measure_planned(transfer, "planned, all copied", *arguments)
    shared = measure_planned(transfer.sharing(rank), "planned, shared where possible", *arguments)
    figures = [copied, shared]
    if group is not None:
        timing = slowest(
            time_runs(lambda: _broadcast_all(transfer, rank, group), _device(transfer), max(1, repeats // 3), 1), group
        )
        whole = sum(prod(tensor.shape) for tensor in logical_tensors(transfer.model)) * transfer.plan.itemsize
        figures.append(_figure(transfer, "broadcast whole tensors", timing, received_bytes=whole))
    return figures


def measure_planned(
    transfer: Transfer,
    way: str,
    rank: int,
    group: dist.ProcessGroup | None,
    budget_bytes: int,
    repeats: int,
    transport: TransportName = "auto",
) -> Figure:
    """One plan, carried out and checked: right bits everywhere, and no byte received beyond the bound."""
    plan, device = transfer.plan, _device(transfer)
    sides = (transfer.sources, transfer.destinations)
    executor = ReshardExecutor(plan, rank, *sides, group, budget_bytes, transport=transport)
    timing = slowest(time_runs(executor.run, device, repeats), group)
    costs = plan.costs.values()
    return _figure(
        transfer,
        way,
        timing,
        aliased_bytes=max(c.aliased_bytes for c in costs),
        copied_bytes=max(c.copied_bytes for c in costs),
        received_bytes=max(c.received_bytes for c in costs),
        bound_bytes=max(c.bound_bytes for c in costs),
        predicted_s=predict_seconds(plan, H200_NODE if device.type == "cuda" else CPU_HOST),
        peak_bytes=executor.run().peak_extra_bytes + (timing.peak_bytes or 0),
        note=executor.transport_summary,
        correct=_is_correct(transfer, rank, group) and all(c.received_bytes == c.bound_bytes for c in costs),
    )


def measure_packing(model: ModelConfig, pair: str, device: torch.device, dtype: torch.dtype, repeats: int) -> list[Figure]:
    """What rank 0 of a pair packs and unpacks, without the wire: torch's batched copy against the one-launch kernel."""
    transfer = Transfer.build(model, pair, 0, device, dtype, 8 << 30)
    figures = []
    for way, sending in (("pack", True), ("unpack", False)):
        pairs = list(_staged_pairs(transfer, sending, device, dtype))
        moved = sum(source.numel() for source, _ in pairs) * dtype.itemsize
        kernel = prepare_strided_copies([s for s, _ in pairs], [d for _, d in pairs])
        sources, destinations = [s for s, _ in pairs], [d for _, d in pairs]
        for who, run in (("kernel", kernel.run), ("foreach", partial(torch._foreach_copy_, destinations, sources))):
            timing = time_runs(run, device, repeats)
            rate = f"{len(pairs)} pieces, {2 * moved / timing.seconds / 1e12:.2f} TB/s read + written"
            figures.append(_figure(transfer, f"{way}, {who}", timing, copied_bytes=moved, note=rate))
    return figures


def _staged_pairs(
    transfer: Transfer, sending: bool, device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor]]:
    for message in _messages(transfer.plan, sending):
        runs = torch.empty(message.num_elements, dtype=dtype, device=device).split([p.num_elements for p in message.pieces])
        for piece, run in zip(message.pieces, runs, strict=True):
            staged = run.view(piece.shape)
            if sending:
                source = transfer.sources[piece.source]
                yield source.as_strided(piece.shape, piece.source_strides, piece.source_offset), staged
            else:
                destination = transfer.destinations[piece.destination]
                yield staged, destination.as_strided(piece.shape, piece.destination_strides, piece.destination_offset)


def _device(transfer: Transfer) -> torch.device:
    return next(iter(transfer.sources.values())).device


def _messages(plan: ReshardPlan, sending: bool) -> Iterator[Message]:
    for transfer in (t for transfers in plan.rounds for t in transfers):
        if (transfer.source_rank if sending else transfer.destination_rank) == 0:
            yield transfer.message


def _figure(transfer: Transfer, way: str, timing: Timing, **fields: object) -> Figure:
    values = {"peak_bytes": timing.peak_bytes, **fields}
    return Figure(
        model=transfer.model.name,
        case=transfer.pair,
        way=way,
        seconds=timing.seconds,
        low_s=timing.low_s,
        high_s=timing.high_s,
        **values,  # type: ignore[arg-type]
    )


def slowest(timing: Timing, group: dist.ProcessGroup | None) -> Timing:
    """That of the slowest rank. Collectives: ``group``."""
    if group is None:
        return timing
    answers = [timing] * dist.get_world_size(group)
    dist.all_gather_object(answers, timing, group=group)
    return max(answers, key=lambda answer: answer.seconds)


def _is_correct(transfer: Transfer, rank: int, group: dist.ProcessGroup | None) -> bool:
    tensors, stored, wanted = logical_tensors(transfer.model), transfer.stored(rank), transfer.wanted(rank)
    try:
        verify_transfer(tensors, stored, transfer.sources, wanted, transfer.destinations, group)
    except ValueError as error:
        print(error, flush=True)
        return False
    return True


def _broadcast_all(transfer: Transfer, rank: int, group: dist.ProcessGroup) -> None:
    """What most frameworks do: every box of every tensor reaches every rank, and each takes what it needs of it."""
    needed: dict[str, list[Fragment]] = {}
    for f in transfer.wanted(rank):
        needed.setdefault(f.tensor, []).append(f)
    held = {(f.tensor, f.start, f.stop): f for f in transfer.stored(rank)}
    for name, shape, boxes in _owners(transfer, dist.get_world_size(group)):
        device, dtype = next(iter(transfer.sources.values())).device, next(iter(transfer.sources.values())).dtype
        whole = torch.empty(shape, dtype=dtype, device=device)
        for (start, stop), owner in boxes.items():
            part = torch.empty([b - a for a, b in zip(start, stop, strict=True)], dtype=dtype, device=device)
            if owner == rank:
                f = held[name, start, stop]
                part.copy_(fragment_view(f, transfer.sources[f.buffer]))
            dist.broadcast(part, owner, group=group)
            whole[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = part
        for f in needed.get(name, ()):
            box = tuple(slice(a, b) for a, b in zip(f.start, f.stop, strict=True))
            fragment_view(f, transfer.destinations[f.buffer]).copy_(whole[box])


def _owners(transfer: Transfer, world_size: int) -> Iterator[tuple[str, tuple[int, ...], dict[Box, int]]]:
    """Each tensor's boxes and the first rank that stores each."""
    boxes: dict[str, dict[Box, int]] = {}
    for rank in range(world_size):
        for f in transfer.stored(rank):
            boxes.setdefault(f.tensor, {}).setdefault((f.start, f.stop), rank)
    for tensor in logical_tensors(transfer.model):
        yield tensor.name, tensor.shape, boxes[tensor.name]


def values_of(tensor: str, box: Box, device: torch.device) -> Tensor:
    """Values that depend on the place in the tensor only."""
    (first, *_), (last, *_) = box
    rows = torch.arange(first, last, device=device, dtype=torch.float32)
    if len(box[0]) == 1:
        return rows % 251 + len(tensor)
    columns = torch.arange(box[0][1], box[1][1], device=device, dtype=torch.float32)
    return (rows[:, None] * 7 + columns[None]) % 251 + len(tensor) % 5
