"""Overrides of a command line -> configuration, with the model's shape from the checkpoint where one is given."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_rl.config.loading import compose
from megatron_rl.config.run import RunConfig
from megatron_rl.weights.hf_config import model_config_from_hf


def compose_run(overrides: Sequence[str]) -> RunConfig:
    """Typed configuration of a command. Raises ConfigError with every problem of spelling, grammar and type."""
    return compose(overrides, read_shape=model_config_from_hf)
