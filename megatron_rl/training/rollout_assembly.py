"""Building the rollout side of a job: engine, generator, weight sync."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from megatron_rl.config.world import max_model_len
from megatron_rl.data.tokenizer import Tokenizer
from megatron_rl.resharding.executor import ReshardExecutor
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.rollout.generator import RolloutGenerator
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.model_loading import role_weights
from megatron_rl.training.weight_sync import WeightSync
from megatron_rl.weights.hf_config import hf_config
from megatron_rl.weights.names import logical_tensors


@dataclass(frozen=True)
class RolloutSide:
    """What samples."""

    engine: VllmEngine
    generator: RolloutGenerator
    sampling: SamplingSettings
    validation_sampling: SamplingSettings


def build_rollout_side(job: Job, tokenizer: Tokenizer) -> RolloutSide:
    """Start this rank's engine shard; its weights are not valid before a sync. Collectives: all ranks."""
    config = job.config
    spec = EngineSpec(
        model_folder=_model_folder(job),
        rollout=config.rollout,
        layout=job.rollout_layout,
        device=job.platform.device,
        dtype=job.platform.dtype,
        max_model_len=max_model_len(config),
    )
    engine = VllmEngine(spec, job.host_group)
    seed = config.trainer.seed if config.rollout.seed is None else config.rollout.seed
    generator = RolloutGenerator(engine, job.rollout_layout, job.host_group, seed=seed, pad_token_id=tokenizer.pad_token_id)
    budget = config.data.max_response_length
    return RolloutSide(
        engine=engine,
        generator=generator,
        sampling=SamplingSettings.for_training(config.rollout, budget, tokenizer.eos_token_ids),
        validation_sampling=SamplingSettings.for_validation(config.rollout.val_kwargs, budget, tokenizer.eos_token_ids),
    )


def build_weight_sync(job: Job, actor: MegatronRole, engine: VllmEngine) -> WeightSync:
    """Plan the transfer from the actor's layout to the engine's and bind it. Collectives: all ranks compare plans."""
    model = job.config.model
    plan = plan_reshard(
        logical_tensors(model),
        role_weights(job, actor),
        actor.groups.layout.ranks,
        vllm_rules_layout(model, job.rollout_layout),
        range(job.rollout_layout.world_size),
        itemsize=job.platform.dtype.itemsize,
        budget_bytes=job.config.weight_sync.budget_bytes,
    )
    executor = ReshardExecutor(
        plan,
        job.rank,
        actor.named_local_parameters(),
        engine.parameters(),
        dist.group.WORLD,
        job.config.weight_sync.budget_bytes,
    )
    return WeightSync(executor, plan, engine)


def _model_folder(job: Job) -> Path:
    """A folder with ``config.json`` for the engine: the checkpoint's, or one written from the shape."""
    if job.config.model.path is not None:
        return Path(job.config.model.path)
    folder = job.run_dir / "engine_model"
    if job.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        description = hf_config(job.config.model, dtype=str(job.platform.dtype).removeprefix("torch."))
        (folder / "config.json").write_text(json.dumps(description, indent=2) + "\n")
    dist.barrier(job.host_group)
    return folder
