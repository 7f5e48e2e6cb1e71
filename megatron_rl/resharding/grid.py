"""The layout pairs that a grid report covers: dense, tied, latent attention and mixture of experts, on 8 ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import lcm
from typing import Any

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.fabric import Fabric
from megatron_rl.resharding.layout_check import layout_problems
from megatron_rl.resharding.report import ReshardReport, report_placements

DENSE_TRAIN = (
    ParallelLayout(data=8),
    ParallelLayout(tensor=2, data=4),
    ParallelLayout(tensor=4, data=2),
    ParallelLayout(tensor=8),
    ParallelLayout(tensor=2, context=2, data=2),
    ParallelLayout(pipeline=2, data=4),
    ParallelLayout(tensor=2, pipeline=2, data=2),
    ParallelLayout(tensor=2, pipeline=2, virtual_pipeline=2, data=2),
    ParallelLayout(tensor=4, pipeline=2),
    ParallelLayout(tensor=2, pipeline=4),
)
EXPERT_TRAIN = (
    ParallelLayout(data=8, expert=8),
    ParallelLayout(tensor=2, data=4, expert=4, expert_tensor=2),
    ParallelLayout(tensor=2, data=4, expert=8, expert_tensor=1),
    ParallelLayout(tensor=4, data=2, expert=8, expert_tensor=1),
    ParallelLayout(tensor=2, pipeline=2, data=2, expert=4, expert_tensor=1),
)
ROLLOUT = tuple(RolloutLayout(tensor=tensor, data=8 // tensor) for tensor in (1, 2, 4, 8))
PIPELINED_ROLLOUT = (RolloutLayout(tensor=2, pipeline=2, data=2), RolloutLayout(tensor=4, pipeline=2))
GRID_MODELS = ("qwen3_8b", "qwen2_5_1_5b", "qwen3_30b_a3b", "deepseek_v3")
"""Presets of the whole grid."""
GRID_LAYERS = 8
"""Layers each preset is cut to: every layer is alike, so ratios stay and the grid takes seconds."""


@dataclass(frozen=True, slots=True)
class GridCase:
    """One pair of layouts of one model."""

    model: ModelConfig
    train: ParallelLayout
    rollout: RolloutLayout
    padded_vocab: int | None = None
    """Rows of the trainer's embedding where it pads otherwise than this project's trainer."""


@dataclass(frozen=True, slots=True)
class GridEntry:
    """One case in every placement."""

    case: GridCase
    natural: ReshardReport
    run: ReshardReport
    best: ReshardReport

    @property
    def label(self) -> str:
        """Both layouts in short. Example: ``TP2 DP4 -> TP8``."""
        padding = "" if self.case.padded_vocab is None else f" V{self.case.padded_vocab}"
        return f"{describe(self.case.train)}{padding} -> {describe(self.case.rollout)}"

    def to_json_object(self) -> dict[str, Any]:
        """Plain data: figures of the placements side by side; ratios are null where only the bound is 0."""
        reports = {"natural": self.natural, "run": self.run, "best": self.best}
        wanted = ("received_bytes", "max_received_bytes", "bound_ratio", "rounds", "peak_extra_bytes", "predicted_seconds")
        figures = {name: report.to_json_object() for name, report in reports.items()}
        return {
            "model": self.natural.model,
            "layouts": self.label,
            "train": figures["natural"]["train"],
            "rollout": figures["natural"]["rollout"],
            "order": figures["run"]["train"]["order"],
            "engine_order": figures["run"]["rollout"]["order"],
            "permutation": figures["best"]["rollout"]["permutation"],
            "bound_bytes": self.best.bound_bytes,
            **{name: {key: report[key] for key in wanted} for name, report in figures.items()},
            "gather_bytes": self.natural.gather_bytes * len(self.natural.ranks),
            "broadcast_bytes": self.natural.broadcast_bytes * len(self.natural.ranks),
        }


def describe(layout: ParallelLayout | RolloutLayout) -> str:
    """Degrees above 1 in the field's abbreviations. Example: ``TP2 PP2 DP2``."""
    degrees = {"TP": layout.tensor, "PP": layout.pipeline}
    if isinstance(layout, ParallelLayout):
        degrees |= {"VPP": layout.virtual_pipeline, "CP": layout.context}
    degrees |= {"DP": layout.data, "EP": layout.expert}
    if isinstance(layout, ParallelLayout) and layout.expert_tensor is not None:
        degrees["ETP"] = layout.expert_tensor
    shown = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1 or name == "ETP"]
    return " ".join(shown) or "TP1"


def grid_layouts(model: ModelConfig) -> Iterator[tuple[ParallelLayout, RolloutLayout]]:
    """Pairs for one shape: 40 for a dense model; for experts 35, cut by TP or spread whole over the engine."""
    if model.moe is None:
        yield from product(DENSE_TRAIN, ROLLOUT)
        return
    for train, rollout in product(EXPERT_TRAIN, ROLLOUT):
        yield train, rollout
        if rollout.tensor > 1:
            yield train, replace(rollout, expert=rollout.tensor)


def grid_cases(preset: Callable[[str], ModelConfig], names: tuple[str, ...] = GRID_MODELS) -> Iterator[GridCase]:
    """Every case of the grid that the shape allows; ``preset`` looks a model shape up by name.

    The tied model has 2 key/value heads, fewer than some engines have shards, and is also planned with the vocabulary
    padded to 128 * TP rows, as other trainers do, so that shard boundaries differ. Latent attention has no pipeline on
    the training side, since its 61 layers do not divide.
    """
    for name in names:
        yield from filter(_divides, _cases_of(_shortened(preset(name))))


def _divides(case: GridCase) -> bool:
    train, rollout = asdict(case.train) | {"expert_tensor": case.train.etp}, asdict(case.rollout)
    return not any(layout_problems(case.model, train, rollout))


def _cases_of(model: ModelConfig) -> Iterator[GridCase]:
    if model.mla is not None:
        trains = tuple(train for train in EXPERT_TRAIN if train.pipeline == 1)
        yield from (GridCase(model, train, rollout) for train, rollout in product(trains, (*ROLLOUT, *PIPELINED_ROLLOUT)))
    elif model.moe is not None:
        yield from (GridCase(model, *pair) for pair in grid_layouts(model))
        yield from (GridCase(model, train, rollout) for train, rollout in product(EXPERT_TRAIN, PIPELINED_ROLLOUT))
    elif not model.tie_word_embeddings:
        yield from (GridCase(model, *pair) for pair in product(DENSE_TRAIN, (*ROLLOUT, *PIPELINED_ROLLOUT)))
    else:
        yield from _tied_cases(model)


def _tied_cases(model: ModelConfig) -> Iterator[GridCase]:
    trains = (ParallelLayout(tensor=2, data=4), ParallelLayout(tensor=2, pipeline=2, data=2), ParallelLayout(tensor=4, data=2))
    rollouts = (*(RolloutLayout(tensor=t, data=8 // t) for t in (1, 2, 4)), RolloutLayout(tensor=4, pipeline=2))
    for train, rollout in product(trains, rollouts):
        yield GridCase(model, train, rollout)
        multiple = lcm(128, train.tensor) * train.tensor
        padded = -(-(model.vocab_size + 1) // multiple) * multiple
        yield GridCase(model, train, rollout, padded)


def _shortened(model: ModelConfig) -> ModelConfig:
    layers = min(GRID_LAYERS if model.moe is None else GRID_LAYERS // 2, model.num_layers)
    return model.model_copy(update={"name": f"{model.name} ({layers} layers)", "num_layers": layers})


def report_case(case: GridCase, fabric: Fabric, *, budget_bytes: int = 256 << 20) -> GridEntry:
    """Plan one case in every placement. Raises ValueError naming the key where a layout does not divide the shape."""
    reports = report_placements(
        case.model, case.train, case.rollout, fabric, budget_bytes=budget_bytes, padded_vocab=case.padded_vocab
    )
    return GridEntry(case, **reports)
