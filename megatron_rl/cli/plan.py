"""``megatron-rl plan``: what a weight transfer between two layouts costs, without torch and without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.spelling import nearest_choice
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.fabric import FABRICS, Fabric
from megatron_rl.resharding.layout_check import check_same_ranks, layout_problems, not_trained_yet
from megatron_rl.resharding.placement import PlacementName
from megatron_rl.resharding.report import report_reshard

TRAIN_KEYS = ("tensor", "pipeline", "virtual_pipeline", "data", "context", "expert", "expert_tensor")
ROLLOUT_KEYS = ("tensor", "pipeline", "data", "expert")
KEYS = (
    "model",
    *(f"train.{key}" for key in TRAIN_KEYS),
    *(f"rollout.{key}" for key in ROLLOUT_KEYS),
    "gpus_per_node",
    "fabric",
    "permute",
    "fan_out",
    "rollout.quantization",
    "budget_mib",
    "disaggregated",
)
USAGE = """\
usage: megatron-rl plan model=PRESET [train.KEY=N ...] [rollout.KEY=N ...] [key=value ...] [--json]
       megatron-rl plan --grid [model=PRESET] [--json] [--png FILE]

  train.    tensor, pipeline, virtual_pipeline, data, context, expert, expert_tensor (1; expert_tensor as tensor)
  rollout.  tensor, pipeline, data, expert (1; data fills the training ranks)
            quantization=fp8_per_block: linear weights travel and stay in FP8 (null)
  permute        orders of training and engine ranks as a run chooses them (true); false = natural rank order;
                 best = engine shards on any rank of their node where that is less, which no run can have
  fan_out        replicas of a node share what comes from other nodes, as in a run (true)
  disaggregated  engines on ranks of their own, behind the training ranks (false)
  gpus_per_node  ranks that share a node (8)
  fabric         rates for the seconds: h200, cpu (h200)
  budget_mib     most extra memory per rank (256)

--grid reports the layout pairs that divide, in all three orders, against gather and broadcast; --png draws them.
example: megatron-rl plan model=qwen3_8b train.tensor=4 train.pipeline=2 train.data=2 rollout.tensor=8"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A command line, taken apart."""

    model: ModelConfig
    train: ParallelLayout
    rollout: RolloutLayout
    fabric: Fabric
    placement: PlacementName
    fan_out: bool
    quantised: bool
    budget_bytes: int


def run(argv: list[str]) -> int:
    """Plan and print; ``--json`` prints the whole answer for programs.

    Raises:
        ConfigError: every problem of spelling, and every degree that does not divide with the nearest that does.
    """
    if not argv:
        print(USAGE)
        return 0
    if "--grid" in argv:
        return _run_grid(argv)
    call = parse([argument for argument in argv if argument != "--json"])
    try:
        report = report_reshard(
            call.model,
            call.train,
            call.rollout,
            call.fabric,
            budget_bytes=call.budget_bytes,
            placement=call.placement,
            fan_out=call.fan_out,
            quantised=call.quantised,
        )
    except ValueError as problem:  # a shard that cuts through a block of FP8
        raise ConfigError([str(problem)]) from None
    refused = not_trained_yet(call.model, call.train, call.rollout)
    if "--json" in argv:
        print(json.dumps({**report.to_json_object(), "not_trained_yet": refused}, indent=1, allow_nan=False))
        return 0
    from megatron_rl.cli.plan_tables import show_report

    show_report(report, sys.stdout)
    if refused:
        print(f"note: this can be planned; training refuses {', '.join(refused)}")
    return 0


def parse(argv: Sequence[str]) -> Call:
    """Read the command line. Raises ConfigError with every problem."""
    problems: list[str] = []
    given = _given(argv, problems)
    model = _model(given.get("model"), problems)
    train = {key: _number(f"train.{key}", given, 1, problems) for key in TRAIN_KEYS}
    train["expert_tensor"] = _number("train.expert_tensor", given, train["tensor"], problems)
    train_ranks = train["tensor"] * train["pipeline"] * train["data"] * train["context"]
    rollout = {key: _number(f"rollout.{key}", given, 1, problems) for key in ROLLOUT_KEYS}
    rollout["data"] = _number("rollout.data", given, max(1, train_ranks // (rollout["tensor"] * rollout["pipeline"])), problems)
    disaggregated = _flag("disaggregated", given, False, problems)
    placement = _placement(given, problems)
    fan_out = _flag("fan_out", given, True, problems)
    quantised = _quantised(given, model, problems)
    fabric = _fabric(given, problems)
    budget_bytes = _number("budget_mib", given, 256, problems) << 20
    if model is None or problems:
        raise ConfigError(problems)
    problems += layout_problems(model, train, rollout)
    if problems:
        raise ConfigError(problems)
    layout = ParallelLayout(
        **{key: train[key] for key in TRAIN_KEYS if key != "expert_tensor"},  # type: ignore[arg-type]
        expert_tensor=train["expert_tensor"] if model.moe is not None else None,
    )
    engines = RolloutLayout(**rollout, offset=train_ranks if disaggregated else 0)  # type: ignore[arg-type]
    if not disaggregated:
        problems += check_same_ranks(model, layout.world_size, engines)
    if problems:
        raise ConfigError(problems)
    return Call(
        model=model,
        train=layout,
        rollout=engines,
        fabric=fabric,
        placement=placement,
        fan_out=fan_out,
        quantised=quantised,
        budget_bytes=budget_bytes,
    )


def _quantised(given: Mapping[str, str], model: ModelConfig | None, problems: list[str]) -> bool:
    value = given.get("rollout.quantization", "null")
    if value not in ("null", "fp8_per_block"):
        problems.append(f"rollout.quantization={value}: must be null or fp8_per_block")
    if value != "null" and model is not None and (model.moe is not None or model.mla is not None):
        problems.append(f"rollout.quantization={value}: experts and latent attention stay unquantised so far; use null")
    return value != "null"


def _given(argv: Sequence[str], problems: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for argument in argv:
        key, equals, value = argument.partition("=")
        if key in KEYS and equals:
            given[key] = value
            continue
        problems.append(f"{argument}: write key=value" if key in KEYS else f"{key}: no such key; {_advice(key)}")
    return given


def _advice(key: str) -> str:
    if key.startswith("-"):
        return "flags are --json, --grid, and with it --png FILE"
    if key in ("train", "rollout"):
        return f"keys are {', '.join(known for known in KEYS if known.startswith(f'{key}.'))}"
    close = _nearest_key(key)
    return f"did you mean {close}?" if close else f"keys are {', '.join(KEYS)}"


_SHORT = {"tp": "tensor", "pp": "pipeline", "vpp": "virtual_pipeline", "dp": "data", "cp": "context"}
_SHORT |= {"ep": "expert", "etp": "expert_tensor"}


def _nearest_key(key: str) -> str | None:
    section, _, name = key.rpartition(".")
    spelt = f"{section}.{_SHORT[name]}" if name in _SHORT else key
    return nearest_choice(spelt, KEYS)


def _model(name: str | None, problems: list[str]) -> ModelConfig | None:
    from megatron_rl.config.loading import compose, group_choices

    known = group_choices()["model"]
    if name is None:
        problems.append(f"model: required but not set; model is one of: {', '.join(known)}")
    elif name not in known:
        close = nearest_choice(name, known)
        advice = f"did you mean {close}? " if close else ""
        problems.append(f"model={name}: no such model; {advice}known: {', '.join(known)}")
    else:
        return compose([f"model={name}"]).model
    return None


def _number(key: str, given: Mapping[str, str], default: int, problems: list[str]) -> int:
    text = given.get(key, str(default))
    if text.isdecimal() and int(text) > 0:
        return int(text)
    problems.append(f"{key}={text}: must be a whole number above 0")
    return 1


def _flag(key: str, given: Mapping[str, str], default: bool, problems: list[str]) -> bool:
    text = given.get(key, str(default)).lower()
    if text not in ("true", "false"):
        problems.append(f"{key}={given[key]}: must be true or false")
    return text == "true"


_PLACEMENTS: dict[str, PlacementName] = {"true": "run", "false": "natural", "best": "best"}


def _placement(given: Mapping[str, str], problems: list[str]) -> PlacementName:
    text = given.get("permute", "true").lower()
    if text not in _PLACEMENTS:
        problems.append(f"permute={given['permute']}: must be true, false or best")
    return _PLACEMENTS.get(text, "run")


def _fabric(given: Mapping[str, str], problems: list[str]) -> Fabric:
    name = given.get("fabric", "h200")
    if name not in FABRICS:
        close = nearest_choice(name, FABRICS)
        advice = f"did you mean {close}? " if close else ""
        problems.append(f"fabric={name}: no such fabric; {advice}known: {', '.join(FABRICS)}")
    fabric = FABRICS.get(name, FABRICS["h200"])
    return replace(fabric, ranks_per_node=_number("gpus_per_node", given, fabric.ranks_per_node, problems))


def _run_grid(argv: Sequence[str]) -> int:
    """Report every pair of the grid, or those of one model."""
    from megatron_rl.resharding.grid import GRID_MODELS, grid_cases, report_case

    rest = [argument for argument in argv if argument not in ("--grid", "--json")]
    figure = _figure_path(rest)
    problems: list[str] = []
    given = _given(rest, problems)
    problems += [
        f"{key}: has no effect with --grid"
        for key in given
        if key.startswith(("train.", "rollout.", "permute", "fan_out", "disaggregated"))
    ]
    fabric = _fabric(given, problems)
    budget_bytes = _number("budget_mib", given, 256, problems) << 20
    if "model" in given:
        _model(given["model"], problems)
    if problems:
        raise ConfigError(problems)
    names = (given["model"],) if "model" in given else GRID_MODELS
    entries = [report_case(case, fabric, budget_bytes=budget_bytes) for case in grid_cases(_preset(), names)]
    if not entries:
        raise ConfigError([f"model={given['model']}: none of the grid's layouts on 8 ranks divides this shape"])
    if figure is not None:
        from megatron_rl.resharding.figure import draw_grid

        draw_grid(entries, figure)
    if "--json" in argv:
        pairs = [entry.to_json_object() for entry in entries]
        print(json.dumps({"fabric": fabric.name, "pairs": pairs}, indent=1, allow_nan=False))
        return 0
    from megatron_rl.cli.plan_tables import show_grid

    show_grid(entries, sys.stdout)
    return 0


def _preset() -> Callable[[str], ModelConfig]:
    from megatron_rl.config.loading import compose

    return lambda name: compose([f"model={name}"]).model


def _figure_path(arguments: list[str]) -> Path | None:
    """Take ``--png FILE`` out of the arguments."""
    if "--png" not in arguments:
        return None
    at = arguments.index("--png")
    taken = arguments[at : at + 2]
    del arguments[at : at + 2]
    if len(taken) < 2:
        raise ConfigError(["--png: give the file to write"])
    path = Path(taken[1])
    if path.suffix != ".png" or not path.parent.is_dir():
        raise ConfigError([f"--png {path}: name a .png file in a folder that exists"])
    return path
