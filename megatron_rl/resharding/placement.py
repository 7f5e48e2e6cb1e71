"""Where actor and engine shards lie: in natural order, as a run lays them, and as well as anything could."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.parallel.from_config import engine_layout, role_layout
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.parallel.rank_order import joined
from megatron_rl.resharding.megatron_layout import megatron_layouts
from megatron_rl.resharding.permutation import Overlaps, choose_permutation, choose_rank_order
from megatron_rl.resharding.spec import LayoutFn
from megatron_rl.resharding.vllm_rules import vllm_rules_layout

PlacementName = Literal["natural", "run", "best"]
"""natural: both in rank order. run: the training grid in the order that a run chooses. best: the better of that and of
engine shards on any rank of their node, which no run can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Both layouts with their orders, and what each rank needs and does not hold."""

    train: ParallelLayout
    rollout: RolloutLayout
    source: LayoutFn
    destination: LayoutFn
    missing_elements: Mapping[int, int]
    """Engine rank -> the least it must receive."""

    @property
    def total_missing(self) -> int:
        """Elements, over all ranks."""
        return sum(self.missing_elements.values())


def placements(
    model: ModelConfig, train: ParallelLayout, rollout: RolloutLayout, ranks_per_node: int, padded_vocab: int | None = None
) -> dict[PlacementName, Placement]:
    """All three; the same one thrice where training and engines are on different ranks.

    ``padded_vocab``: rows of the trainer's embedding over all its ranks; None = as this project's trainer pads.
    Raises ValueError naming the key where a layout does not divide.
    """
    sources = megatron_layouts(model, train, padded_vocab or padded_vocab_size(model.vocab_size, train.tensor))
    destination = vllm_rules_layout(model, rollout)
    overlaps = Overlaps(sources(train.order), destination)

    def with_order(layout: ParallelLayout) -> Placement:
        source = sources(layout.order)
        missing = overlaps.with_source(source).missing(dict(zip(rollout.ranks, rollout.ranks, strict=True)))
        return Placement(train=layout, rollout=rollout, source=source, destination=destination, missing_elements=missing)

    natural = with_order(train)
    if tuple(train.ranks) != rollout.ranks:
        return {"natural": natural, "run": natural, "best": natural}
    order = choose_rank_order(sources, train.rank_order, destination, train.ranks, ranks_per_node)
    run = natural if order is None else with_order(replace(train, order=order))
    permutation = choose_permutation(overlaps, rollout.ranks, ranks_per_node)
    slots = dict(zip(permutation, rollout.ranks, strict=True))
    free = Placement(
        train=train,
        rollout=replace(rollout, permutation=permutation),
        source=natural.source,
        destination=lambda rank: destination(slots[rank]),
        missing_elements=overlaps.missing(slots),
    )
    return {"natural": natural, "run": run, "best": free if free.total_missing < run.total_missing else run}


def run_placements(config: RunConfig, world_size: int, ranks_per_node: int) -> dict[PlacementName, Placement]:
    """``placements`` of a configured training run; without ``weight_sync.permute`` it keeps the natural order."""
    train, rollout = role_layout(config.actor.parallel, world_size), engine_layout(config.rollout, world_size)
    choices = placements(config.model, train, rollout, ranks_per_node)
    return choices if config.weight_sync.permute else {**choices, "run": choices["natural"]}


def placement_summary(choices: Mapping[PlacementName, Placement], itemsize: int) -> str:
    """One line: what all ranks receive per sync with this run's order, in natural order and at best, and the order."""
    sizes = {name: f"{choice.total_missing * itemsize / 2**20:.1f}" for name, choice in choices.items()}
    order = " ".join(f"{axis}={size}" for axis, size in joined(choices["run"].train.rank_order)) or "one rank"
    return (
        f"weight sync: all ranks receive {sizes['run']} MiB, in natural rank order {sizes['natural']}, at best "
        f"{sizes['best']}; order of the actor's ranks, fastest first: {order}"
    )
