"""The configuration of a measured run, as the few keys that differ from a preset's defaults, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import ValidationError

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose
from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.measurements import Measurement, Setting

_SECTIONS = ("actor", "critic", "ref", "rollout", "weight_sync", "algorithm")
_KEYS = (
    "model.transformer_impl",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "trainer.dtype",
)
"""Of other sections; the rest of them changes neither memory nor the seconds of a phase."""
_PLACES = ("load_path",)
"""Last parts of keys that say where files lie."""


def settings_of(config: RunConfig, preset: str) -> dict[str, Setting]:
    """Dotted keys in which a run differs from ``model=<preset>`` alone, as far as they change its memory or speed."""
    usual = dict(_leaves(_preset_config(preset).model_dump(mode="json"), ""))
    return {
        key: value
        for key, value in _leaves(config.model_dump(mode="json"), "")
        if _counts(key) and (key not in usual or value != usual[key])
    }


def recorded_config(record: Measurement) -> RunConfig:
    """Configuration of a measured run.

    Raises ConfigError naming the record and the key where a setting is none of this version's.
    """
    content = _preset_config(record.model).model_dump(mode="json")
    for key, value in record.settings.items():
        *parents, leaf = key.split(".")
        section = content
        for parent in parents:
            if section.get(parent) is None:  # an optional section
                section[parent] = {}
            section = section[parent]
        section[leaf] = value
    try:
        return RunConfig.model_validate_json(json.dumps(content))
    except ValidationError as failure:
        problems = [f"record {record.name}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in failure.errors()]
        raise ConfigError(problems) from None


@cache
def _preset_config(preset: str) -> RunConfig:
    return compose([f"model={preset}"])


def _leaves(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Setting]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _counts(key: str) -> bool:
    return (key.partition(".")[0] in _SECTIONS and key.rpartition(".")[2] not in _PLACES) or key in _KEYS
