"""Where actor and engine shards lie: in natural order, as a run lays them, and as well as anything could."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.parallel.from_config import engine_layout, role_layout
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.parallel.rank_order import RankOrder, joined
from megatron_rl.resharding.megatron_layout import megatron_layouts
from megatron_rl.resharding.permutation import Overlaps, choose_permutation, choose_rank_orders
from megatron_rl.resharding.spec import LayoutFn
from megatron_rl.resharding.vllm_rules import vllm_rules_layout

PlacementName = Literal["natural", "run", "best"]
"""natural: both in rank order. run: both grids in the orders that a run chooses. best: the better of that and of engine shards
on any rank of their node, which no run can have."""


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

    def placed(actor: ParallelLayout, engines: RolloutLayout) -> Placement:
        source = sources(actor.order)
        slots = {rank: slot for slot, rank in zip(rollout.ranks, engines.ranks, strict=True)}
        return Placement(
            train=actor,
            rollout=engines,
            source=source,
            destination=lambda rank: destination(slots[rank]),
            missing_elements=overlaps.with_source(source).missing(slots),
        )

    natural = placed(train, rollout)
    if tuple(train.ranks) != rollout.ranks:
        return {"natural": natural, "run": natural, "best": natural}
    actor_order, engine_order = choose_rank_orders(sources, destination, train, rollout, ranks_per_node)
    run = placed(replace(train, order=actor_order), replace(rollout, order=engine_order))
    permutation = choose_permutation(overlaps, rollout.ranks, ranks_per_node)
    free = placed(train, replace(rollout, permutation=permutation))
    return {"natural": natural, "run": run, "best": free if free.total_missing < run.total_missing else run}


def run_placements(config: RunConfig, world_size: int, ranks_per_node: int) -> dict[PlacementName, Placement]:
    """``placements`` of a configured training run; without ``weight_sync.permute`` it keeps the natural order."""
    train, rollout = role_layout(config.actor.parallel, world_size), engine_layout(config.rollout, world_size)
    choices = placements(config.model, train, rollout, ranks_per_node)
    return choices if config.weight_sync.permute else {**choices, "run": choices["natural"]}


def placement_summary(choices: Mapping[PlacementName, Placement], itemsize: int) -> str:
    """One line: what all ranks receive per sync with this run's orders, in natural order and at best, and the orders."""
    sizes = {name: f"{choice.total_missing * itemsize / 2**20:.1f}" for name, choice in choices.items()}
    run = choices["run"]
    return (
        f"weight sync: all ranks receive {sizes['run']} MiB, in natural rank order {sizes['natural']}, at best "
        f"{sizes['best']}; order of the actor's ranks, fastest first: {spelt_order(run.train.rank_order)}, of the engines': "
        f"{spelt_order(run.rollout.rank_order)}"
    )


def spelt_order(order: RankOrder) -> str:
    """Example: ``data=2 tensor=2``."""
    return " ".join(f"{axis}={size}" for axis, size in joined(order)) or "one rank"
