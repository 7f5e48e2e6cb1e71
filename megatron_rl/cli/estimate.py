"""``megatron-rl estimate``: memory, time and money of a run on cards that need not be here."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatron_rl.cli.compose import compose_run
from megatron_rl.cli.own_keys import split_own_keys
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import group_choices

RUN_KEYS = {"batch_size": "data.train_batch_size", "epochs": "trainer.total_epochs", "samples_per_prompt": "rollout.n"}
"""Short names of configuration keys."""
COUNT_KEYS = ("num_gpus", "dataset_size", "prompt_tokens", "response_tokens")
OWN_KEYS = (*RUN_KEYS, *COUNT_KEYS, "model_size", "gpu", "gpu_type", "price_per_hour", "device_map", "measurements")
USAGE = """\
usage: megatron-rl estimate model=PRESET gpu=CARD num_gpus=N [key=value ...] [--json]

  gpu             card, for example A100-40GB, H100, H200-141GB
  num_gpus        cards altogether (1)
  batch_size      prompts of a step (data.train_batch_size)
  epochs          passes over the prompts (trainer.total_epochs)
  dataset_size    prompts (10000, or those of a reasoning-gym task)
  prompt_tokens, response_tokens   means (data.max_prompt_length, data.max_response_length)
  samples_per_prompt   answers to each prompt (rollout.n)
  price_per_hour  USD per GPU hour: 8.5, or {H100: 4, A100: 2}
  device_map      cards by role: {actor: H100, critic: A100} or {actor: 4xH100, critic: 2xA100}
  model_size      instead of model=: 7B and the like
  measurements    JSON file with more measurements to calibrate on

Every configuration key works as in train. Degrees that are set (actor.parallel.tensor=2) stay, the others are searched.
example: megatron-rl estimate model=qwen2_7b gpu=A100-40GB num_gpus=4 batch_size=32 epochs=3 price_per_hour=2.5"""


def run(argv: list[str]) -> int:
    """Estimate and print; ``--json`` prints the whole answer for programs.

    Raises:
        ConfigError: every problem of spelling, naming the nearest key, card or model.
    """
    if not argv:
        print(USAGE)
        return 0
    call = parse(argv)
    from megatron_rl.estimator.estimate import Request, estimate

    answer = estimate(
        compose_run(call.overrides),
        Request(
            gpu=call.gpu,
            num_gpus=call.counts.get("num_gpus", 1),
            device_map=call.device_map,
            price_per_hour=call.price_per_hour,
            num_prompts=call.counts.get("dataset_size"),
            prompt_tokens=call.counts.get("prompt_tokens"),
            response_tokens=call.counts.get("response_tokens"),
            measurements=call.measurements,
            typed=frozenset(text.partition("=")[0].lstrip("+") for text in call.overrides),
        ),
    )
    if call.as_json:
        print(json.dumps(answer.to_dict(), indent=1))
        return 0
    from megatron_rl.cli.estimate_tables import show

    show(answer, sys.stdout)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A command line, taken apart."""

    gpu: str
    overrides: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    device_map: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float | Mapping[str, float] | None = None
    measurements: Path | None = None
    as_json: bool = False


def parse(argv: Sequence[str]) -> Call:
    """Split the command's own keys from the configuration's. Raises ConfigError with every problem."""
    arguments = joined_braces([argument for argument in argv if argument != "--json"])
    problems = [
        f"{word}: write key=value, as in model=qwen2_7b gpu=A100-40GB" for word in arguments if not set(word) & set("=~")
    ]
    own, rest = split_own_keys(arguments, OWN_KEYS)
    overrides = [f"{key}={own[name]}" for name, key in RUN_KEYS.items() if name in own] + rest
    device_map = _mapping("device_map", own.get("device_map", ""), problems)
    counts = {key: _count(key, own[key], problems) for key in COUNT_KEYS if key in own}
    price = _price(own["price_per_hour"], problems) if "price_per_hour" in own else None
    overrides += [f"model={_preset(own['model_size'], problems)}"] if "model_size" in own else []
    gpu = own.get("gpu", own.get("gpu_type", ""))
    if not gpu and "device_map" not in own:
        problems.append("gpu: required but not set; for example gpu=A100-40GB")
    if not any(text.startswith(("model", "experiment")) for text in overrides):
        problems.append(f"model: required but not set; model is one of: {', '.join(group_choices()['model'])}")
    if problems:
        raise ConfigError(problems)
    return Call(
        gpu=gpu,
        overrides=tuple(overrides),
        counts=counts,
        device_map=device_map,
        price_per_hour=price,
        measurements=Path(own["measurements"]) if "measurements" in own else None,
        as_json="--json" in argv,
    )


def joined_braces(arguments: Sequence[str]) -> list[str]:
    """Put ``device_map={actor:``, ``H100}`` together again, which the shell split at the space."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1].count("{") > joined[-1].count("}"):
            joined[-1] += f" {argument}"
        else:
            joined.append(argument)
    return joined


def _mapping(key: str, text: str, problems: list[str]) -> dict[str, str]:
    """``{a: b, c: d}`` as a dictionary; anything else is a problem."""
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    pairs = [item.partition(":") for item in inner.split(",")] if inner else []
    if any(not colon or not value.strip() for _, colon, value in pairs) or (text and not text.startswith("{")):
        problems.append(
            f"{key}={text}: write {{name: value, name: value}} in quotes: 'device_map={{actor: H100, critic: A100}}'"
        )
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def _count(key: str, text: str, problems: list[str]) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    problems.append(f"{key}={text}: must be a whole number above 0")
    return 1


def _price(text: str, problems: list[str]) -> float | dict[str, float]:
    try:
        if text.startswith("{"):
            return {name: float(value) for name, value in _mapping("price_per_hour", text, problems).items()}
        return float(text)
    except ValueError:
        problems.append(f"price_per_hour={text}: must be a number of USD per GPU hour, or {{H100: 4, A100: 2}}")
        return 1.0


def _preset(size: str, problems: list[str]) -> str:
    from megatron_rl.estimator.presets import preset_of_size

    try:
        return preset_of_size(size)
    except ConfigError as failure:
        problems += failure.problems
        return "tiny"
