"""Building the rollout side of a job, in this order: actor, plan, engine (which may adopt weights), weight sync.

Plan and sync are built in ``sync_assembly.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from megatron_rl.config.atomic_files import write_atomically
from megatron_rl.config.run_files import experiment_dir
from megatron_rl.config.world import max_model_len
from megatron_rl.data.tokenizer import Tokenizer
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.resharding.placement import placement_summary, run_placements
from megatron_rl.rollout.generator import RolloutGenerator
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.training.job import Job
from megatron_rl.weights.hf_config import hf_config


@dataclass(frozen=True)
class RolloutSide:
    """What samples."""

    engine: VllmEngine
    generator: RolloutGenerator
    sampling: SamplingSettings
    validation_sampling: SamplingSettings


def build_rollout_side(job: Job, tokenizer: Tokenizer, shared: Mapping[str, Tensor] | None = None) -> RolloutSide:
    """Start this rank's engine shard; its weights are not valid before a sync.

    Args:
        job: the job.
        tokenizer: gives the ids that end a response.
        shared: parameters that live in the trainer's storage, see ``weights_to_share``; None = the engine owns all.

    Collectives: all ranks.
    """
    config = job.config
    spec = EngineSpec(
        model_folder=_model_folder(job),
        rollout=config.rollout,
        layout=job.rollout_layout,
        device=job.platform.device,
        dtype=job.platform.dtype,
        max_model_len=max_model_len(config),
        sleep_mode=bool(config.rollout.free_cache_engine),
        shared=shared or {},
    )
    engine = VllmEngine(spec, job.host_group)
    seed = config.trainer.seed if config.rollout.seed is None else config.rollout.seed
    generator = RolloutGenerator(engine, job.rollout_layout, job.host_group, seed=seed, pad_token_id=tokenizer.pad_token_id)
    budget = config.data.max_response_length
    sampling = SamplingSettings.for_training(config.rollout, budget, tokenizer.eos_token_ids)
    validation = SamplingSettings.for_validation(config.rollout.val_kwargs, budget, tokenizer.eos_token_ids)
    # What is in force, whatever the model's own generation_config.json says.
    job.say(f"rollout: {sampling}\nvalidation: {validation}")
    return RolloutSide(engine=engine, generator=generator, sampling=sampling, validation_sampling=validation)


def place_roles(job: Job) -> tuple[Job, ParallelLayout]:
    """The job with its engines, and the actor's layout, in the rank orders that leave most weights where they are wanted."""
    choices = run_placements(job.config, job.world_size, job.ranks_per_node)
    job.say(placement_summary(choices, job.platform.dtype.itemsize))
    run = choices["run"]
    return replace(job, engine_order=run.rollout.order), run.train


def _model_folder(job: Job) -> Path:
    """A folder with ``config.json`` for the engine: the checkpoint's, or one written from the shape.

    The latter is the same for every attempt of an experiment: vLLM finds compiled graphs by the folder's path.
    """
    if job.config.model.path is not None:
        return Path(job.config.model.path)
    folder = experiment_dir(job.config) / "engine_model"
    if job.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        description = hf_config(job.config.model, dtype=str(job.platform.dtype).removeprefix("torch."))
        write_atomically(folder / "config.json", json.dumps(description, indent=2) + "\n")
    dist.barrier(job.host_group)
    return folder
