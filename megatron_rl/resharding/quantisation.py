"""Weights that become block-scaled FP8 on the way to the engine, as data: which, where their scales lie, two plans.

A weight travels as e4m3 values, one byte each, quantised by the sender while it packs; its scales, one f32 for each 128 x 128
block, travel as a tensor of their own. The scale of a block needs nothing but the block, so no rank asks another, as long as
no rank's shard cuts through one. Weights that the engine does not quantise are planned apart, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from megatron_rl.config.rollout import FP8_BLOCK
from megatron_rl.resharding.plan import ReshardPlan
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.spec import Fragment, LayoutFn, LogicalTensor, RankFragments

SCALE_SUFFIX = "_scale_inv"
"""From a weight's name to that of its scales: in checkpoints of DeepSeek-V3 as in vLLM."""
_LINEAR = tuple(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down"))
"""Ends of the names of weights that vLLM quantises; embedding, LM head, norms and biases stay."""
_COUNTED = ("copied_bytes", "sent_bytes", "received_bytes", "bound_bytes", "staging_bytes", "aliased_bytes")


@dataclass(frozen=True, slots=True)
class QuantisedPlans:
    """A transfer of quantised weights, to be run in this order."""

    values: ReshardPlan
    """FP8 values, 1 byte each; the sender quantises."""
    scales: ReshardPlan
    """f32, of the weights just quantised."""


def split_quantised(tensors: Sequence[LogicalTensor]) -> tuple[list[LogicalTensor], list[LogicalTensor]]:
    """Tensors of a dense model that the engine keeps in FP8, and the others."""
    quantised = [tensor for tensor in tensors if tensor.name.endswith(_LINEAR) and len(tensor.shape) == 2]
    names = {tensor.name for tensor in quantised}
    return quantised, [tensor for tensor in tensors if tensor.name not in names]


def only(layout: LayoutFn, tensors: Sequence[LogicalTensor]) -> LayoutFn:
    """The part of a layout that stores ``tensors``."""
    names = frozenset(tensor.name for tensor in tensors)
    return _mapped(layout, lambda whole: tuple(fragment for fragment in whole if fragment.tensor in names))


def plan_quantised(
    quantised: Sequence[LogicalTensor],
    source: LayoutFn,
    source_ranks: Sequence[int],
    destination: LayoutFn,
    destination_ranks: Sequence[int],
    *,
    budget_bytes: int,
    ranks_per_node: int | None = None,
) -> QuantisedPlans:
    """Plan the transfer of weights that arrive in block-scaled FP8.

    Args:
        quantised: the weights, of ``split_quantised``.
        source: training layout.
        source_ranks: its global ranks.
        destination: engine layout, in which a quantised parameter has the place of the unquantised one.
        destination_ranks: its global ranks.
        budget_bytes: staging of these plans and of that of the other weights (``plain_budget``).
        ranks_per_node: see ``plan_reshard``.

    Raises ValueError naming the tensor where a shard cuts through a block.
    """

    def plan(
        tensors: Sequence[LogicalTensor], held: LayoutFn, needed: LayoutFn, itemsize: int, budget_bytes: int
    ) -> ReshardPlan:
        return plan_reshard(
            tensors,
            held,
            source_ranks,
            needed,
            destination_ranks,
            itemsize=itemsize,
            budget_bytes=budget_bytes,
            ranks_per_node=ranks_per_node,
        )

    return QuantisedPlans(
        values=plan(quantised, only(source, quantised), only(destination, quantised), 1, budget_bytes // 2),
        scales=plan(
            scale_tensors(quantised), of_scales(source, quantised), of_scales(destination, quantised), 4, budget_bytes // 8
        ),
    )


def plain_budget(budget_bytes: int) -> int:
    """What is left of a budget for the staging of weights that are not quantised: each plan keeps staging of its own."""
    return budget_bytes - budget_bytes // 2 - budget_bytes // 8


def scale_tensors(quantised: Sequence[LogicalTensor]) -> list[LogicalTensor]:
    """The scales of weights as tensors of the checkpoint, one element for each block."""
    return [LogicalTensor(tensor.name + SCALE_SUFFIX, _over_blocks(tensor.shape)) for tensor in quantised]


def of_scales(layout: LayoutFn, quantised: Sequence[LogicalTensor]) -> LayoutFn:
    """Where a layout's scales lie: the same boxes and places as the weights', in blocks.

    The answer raises ValueError naming the tensor where a fragment starts, ends or lies inside a block.
    """
    shapes = {tensor.name: tensor.shape for tensor in quantised}
    return _mapped(layout, lambda whole: tuple(_scale_fragment(f, shapes[f.tensor]) for f in whole if f.tensor in shapes))


def _mapped(layout: LayoutFn, change: Callable[[RankFragments], RankFragments]) -> LayoutFn:
    """A layout made from another; replicas, which share a tuple there, share one here too."""
    made: dict[int, tuple[RankFragments, RankFragments]] = {}

    def of_rank(rank: int) -> RankFragments:
        whole = layout(rank)
        if id(whole) not in made:
            made[id(whole)] = (whole, change(whole))  # kept, or another tuple could get its id
        return made[id(whole)][1]

    return of_rank


def _scale_fragment(fragment: Fragment, shape: tuple[int, ...]) -> Fragment:
    width = fragment.strides[0]
    if fragment.strides[1] != 1:
        raise ValueError(f"{fragment.buffer!r} does not store rows of {fragment.tensor!r} one after the other")
    place = divmod(fragment.offset, width)
    whole = all(start % FP8_BLOCK == 0 for start in (*fragment.start, *place))
    whole &= all(stop % FP8_BLOCK == 0 or stop == extent for stop, extent in zip(fragment.stop, shape, strict=True))
    if not whole:
        raise ValueError(
            f"rollout.quantization=fp8_per_block: {fragment.buffer!r} holds {fragment.tensor!r} from {fragment.start} to "
            f"{fragment.stop} at row and column {place}, through blocks of {FP8_BLOCK} x {FP8_BLOCK}; use tensor-parallel "
            "degrees whose shards are whole blocks, or rollout.quantization=null"
        )
    across = -(-width // FP8_BLOCK)
    return replace(
        fragment,
        tensor=fragment.tensor + SCALE_SUFFIX,
        start=tuple(start // FP8_BLOCK for start in fragment.start),
        stop=_over_blocks(fragment.stop),
        buffer=fragment.buffer + SCALE_SUFFIX,
        offset=place[0] // FP8_BLOCK * across + place[1] // FP8_BLOCK,
        strides=(across, 1),
    )


def _over_blocks(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-extent // FP8_BLOCK) for extent in shape)


def counted_together(plans: Sequence[ReshardPlan]) -> ReshardPlan:
    """Plans over the same ranks that run one after the other, as one: to count bytes and rounds; it cannot be run."""
    first = plans[0]
    costs = {
        rank: replace(cost, **{name: sum(getattr(plan.cost(rank), name) for plan in plans) for name in _COUNTED})
        for rank, cost in first.costs.items()
    }
    return replace(first, rounds=tuple(transfers for plan in plans for transfers in plan.rounds), costs=costs)
