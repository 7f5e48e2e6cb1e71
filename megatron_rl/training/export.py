"""The policy as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from megatron_rl.config.model import ModelConfig
from megatron_rl.data.prompts import tokenizer_of
from megatron_rl.resharding.hf_export import ShardedWeights, export_hf_checkpoint
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.model_loading import role_weights


def export_actor(job: Job, actor: MegatronRole, folder: Path) -> None:
    """Write the actor, its config and its tokenizer to ``folder``. Collectives: all ranks of the role."""
    weights = ShardedWeights(
        layout=role_weights(job, actor),
        ranks=actor.groups.layout.ranks,
        parameters=actor.named_local_parameters(),
        group=dist.group.WORLD,
    )
    export_hf_checkpoint(
        folder,
        job.config.model,
        weights,
        dtype=job.platform.dtype,
        budget_bytes=job.config.weight_sync.budget_bytes,
        companions=_companions(job.config.model),
        special_token_ids=_special_token_ids(job.config.model),
    )
    job.say(f"Hugging Face checkpoint: {folder}")


def _companions(model: ModelConfig) -> Path | None:
    """Folder whose tokenizer files go along: the checkpoint's, or the tokenizer's own."""
    if model.tokenizer is None:
        return None
    place = Path(model.tokenizer)
    return place if place.is_dir() else place.parent


def _special_token_ids(model: ModelConfig) -> dict[str, int | list[int] | None]:
    """What makes ``generate`` stop: the tokenizer's ids where there is one, under config.json's names."""
    if model.tokenizer is None:
        return {}
    tokenizer = tokenizer_of(model)
    eos = tokenizer.eos_token_ids
    return {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos),
        "pad_token_id": tokenizer.pad_token_id,
    }
