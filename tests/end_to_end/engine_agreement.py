"""What the engine agreement tests run on their ranks: sync, sample, score, compare, with one engine after the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from megatron_rl.config.run import RunConfig
from megatron_rl.data.tokenizer import load_tokenizer
from megatron_rl.rollout.vllm_engine import VllmEngine
from megatron_rl.training.export import export_actor
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.model_loading import build_actor
from megatron_rl.training.rollout_assembly import build_rollout_side, place_roles
from megatron_rl.training.sync_assembly import build_weight_sync, plan_weight_sync, weights_to_share
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.metrics import Metrics
from megatron_rl.types.prompts import Prompt, PromptBatch
from tests.end_to_end.policies import reference_logprobs

PROMPTS = PromptBatch(
    prompts=tuple(
        Prompt(uid=str(i), token_ids=tuple((7 * i + 3 * j) % 240 + 3 for j in range(1 + i)), text="", row={}) for i in range(7)
    ),
    epoch=0,
)


@dataclass(frozen=True)
class Agreement:
    """What one sync of one policy showed on one rank."""

    sampled_tokens: int
    trainer_difference: float
    """max |trainer - engine| over the sampled tokens, nats."""
    reference_difference: float
    """max |transformers - engine|."""
    unequal_parameters: list[str]
    """Engine parameters whose bits differ from what the engine's own loader makes of the exported folder."""
    num_parameters: int
    bound_ratio: float
    aliased_bytes: float
    """Over all ranks."""
    received_bytes: float
    """Over all ranks."""


def engine_agreement(configs: dict[str, RunConfig], folder: Path) -> dict[str, list[Agreement]]:
    """Two syncs for each configuration: of the loaded weights, and of weights moved since."""
    return {name: _both_syncs(config, folder / name) for name, config in configs.items()}


def _both_syncs(config: RunConfig, folder: Path) -> list[Agreement]:
    job, layout = place_roles(Job.join(config, folder))
    actor = build_actor(job, 1, config.rollout.temperature, layout=layout)
    assert config.model.tokenizer is not None
    # For its special ids alone: the prompts are ids already, and the vocabulary is smaller than the tokenizer's.
    plan = plan_weight_sync(job, actor)
    side = build_rollout_side(job, load_tokenizer(config.model.tokenizer), weights_to_share(job, actor, plan))
    sync = build_weight_sync(job, actor, side.engine, plan)
    found = []
    for version in range(2):
        metrics = sync.push(version)
        rollouts, _ = side.generator.generate(PROMPTS, side.sampling, step=version, policy_version=version)
        exported = folder / f"version{version}"
        export_actor(job, actor, exported)
        found.append(_compare(actor, side.engine, rollouts, exported, metrics))
        sync.invalidate()
        _move(actor)
    side.engine.shutdown()
    return found


def _compare(actor: MegatronRole, engine: VllmEngine, rollouts: RolloutBatch, exported: Path, metrics: Metrics) -> Agreement:
    trainer, _ = actor.score(rollouts)
    reference = reference_logprobs(exported, rollouts, actor.temperature)
    engine_logprobs = rollouts.rollout_logprobs_BS.numpy()
    synced = {name: parameter.clone() for name, parameter in engine.parameters().items()}
    _load_by_engine(engine, exported)
    loaded = engine.parameters()
    return Agreement(
        sampled_tokens=int(rollouts.response_lengths_B.sum()),
        trainer_difference=float(np.abs(trainer.numpy() - engine_logprobs).max()),
        reference_difference=float(np.abs(reference - engine_logprobs).max()),
        unequal_parameters=[name for name in loaded if not torch.equal(loaded[name], synced[name])],
        num_parameters=len(loaded),
        bound_ratio=metrics["sync/bound_ratio"].value,
        aliased_bytes=metrics["sync/bytes_aliased"].value,
        received_bytes=metrics["sync/bytes_received"].value,
    )


def _load_by_engine(engine: VllmEngine, exported: Path) -> None:
    """Overwrite every weight, the actor's where they are shared, then let vLLM read the folder by its own rules."""
    for parameter in engine.parameters().values():
        parameter.fill_(torch.nan)
    model = engine._model()
    model.load_weights(iter(load_file(exported / "model.safetensors").items()))  # type: ignore[operator]


def _move(actor: MegatronRole) -> None:
    """Change every weight by an amount that depends on its place, equally on replicas."""
    with torch.no_grad():
        for parameter in actor.parameters.values():
            parameter.mul_(1.25)
    actor.weights_changed()
    dist.barrier()
