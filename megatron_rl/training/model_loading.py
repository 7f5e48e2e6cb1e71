"""Building Megatron roles and filling them from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.models.gpt import Head
from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.spec import LayoutFn
from megatron_rl.training.job import Job
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.weights.hf_checkpoint import load_hf_checkpoint
from megatron_rl.weights.names import logical_tensors


def role_weights(job: Job, role: MegatronRole, *, value_head: bool = False) -> LayoutFn:
    """Where the role stores each piece of the checkpoint, for every rank."""
    model = job.config.model
    layout = role.groups.layout
    padded = padded_vocab_size(model.vocab_size, layout.tensor)
    return megatron_layout(model, layout, padded, value_head=value_head)


def build_role(
    job: Job,
    layout: ParallelLayout,
    role_config: TrainedRoleConfig,
    *,
    head: Head,
    folder: str | None,
    frozen: bool = False,
    total_optimizer_steps: int = 1,
    temperature: float = 1.0,
) -> MegatronRole:
    """Build one role and load its weights.

    Args:
        job: the job.
        layout: the role's own degrees and rank order.
        role_config: micro-batches, optimizer and recomputation.
        head: ``"lm"`` or ``"value"``; a value head starts fresh whatever the folder holds.
        folder: Hugging Face folder; None = the seeded random weights.
        frozen: it only scores.
        total_optimizer_steps: length of the learning-rate schedule.
        temperature: divides the logits wherever the role scores or learns.

    Collectives: group creation, on all ranks in the same order of roles.
    """
    role = MegatronRole.build(
        model_config=job.config.model,
        role_config=role_config,
        layout=layout,
        registry=job.registry,
        platform=job.platform,
        head=head,
        frozen=frozen,
        total_optimizer_steps=total_optimizer_steps,
        seed=job.config.trainer.seed,
        temperature=temperature,
    )
    if folder is not None:
        fragments = role_weights(job, role, value_head=head == "value")(job.rank)
        load_hf_checkpoint(Path(folder), logical_tensors(job.config.model), fragments, role.named_local_parameters())
        role.weights_changed()
    return role


def build_actor(
    job: Job, total_optimizer_steps: int, temperature: float = 1.0, *, layout: ParallelLayout | None = None
) -> MegatronRole:
    """The policy, from ``actor.load_path`` or ``model.path``; ``temperature`` is the one it is sampled at.

    ``layout``: as configured, in an order that suits the engines; None = in natural order.
    """
    config = job.config
    return build_role(
        job,
        layout or job.layout(config.actor.parallel),
        config.actor,
        head="lm",
        folder=config.actor.load_path or config.model.path,
        total_optimizer_steps=total_optimizer_steps,
        temperature=temperature,
    )


def build_critic(job: Job, total_optimizer_steps: int) -> MegatronRole:
    """The value model: the backbone of ``critic.load_path`` or ``model.path`` under a fresh value head."""
    config = job.config
    return build_role(
        job,
        job.layout(config.critic.parallel),
        config.critic,
        head="value",
        folder=config.critic.load_path or config.model.path,
        total_optimizer_steps=total_optimizer_steps,
    )


def build_reference(job: Job) -> MegatronRole:
    """The frozen policy of the KL terms: ``ref.load_path``, or the weights the actor starts from.

    Its micro-batches are the actor's: whoever makes those smaller to save memory means these as well.
    """
    config = job.config
    return build_role(
        job,
        job.layout(config.ref.parallel or config.actor.parallel),
        config.actor,
        head="lm",
        folder=config.ref.load_path or config.actor.load_path or config.model.path,
        frozen=True,
        temperature=config.rollout.temperature,
    )
