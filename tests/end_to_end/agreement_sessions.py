"""What the agreement tests run on their ranks: many layouts and families in one process group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_rl.config.run import RunConfig
from megatron_rl.training.export import export_actor
from megatron_rl.training.job import Job
from megatron_rl.training.model_loading import build_actor
from tests.support.tiny_models import ragged_batch

TEMPERATURE = 0.8


@dataclass(frozen=True)
class Scores:
    """One policy on one layout."""

    logprobs_BS: np.ndarray
    exported: Path


def megatron_scores(configs: dict[str, RunConfig], exports: Path) -> dict[str, Scores]:
    """Load each configuration's policy onto its layout, score the ragged batch, and write the policy out again."""
    found = {}
    for name, config in configs.items():
        job = Job.join(config, exports)
        actor = build_actor(job, 1, TEMPERATURE)
        logprobs_BS, _ = actor.score(ragged_batch())
        export_actor(job, actor, exports / name)
        found[name] = Scores(logprobs_BS.numpy(), exports / name)
    return found
