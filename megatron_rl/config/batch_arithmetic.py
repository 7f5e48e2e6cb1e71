"""What the batch sizes mean: one function computes every number that follows from them, one lists what cannot be.

Units: ``*_prompts`` are distinct prompts, ``*_samples`` responses (prompts * rollout.n), per step of the whole job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatron_rl.config.run import RunConfig
from megatron_rl.config.tensor_degrees import divisors
from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.config.world import data_degree


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBatches:
    """Optimizer steps of one trained role. Example: 32 prompts x 8, DP 2, mini-batch 16 prompts: 128 samples, 64 a rank."""

    role: str
    mini_batch_samples: int
    """Samples of one optimizer step, over all ranks."""
    mini_batches_per_epoch: int
    optimizer_steps: int
    """Per rollout: mini-batches * ppo_epochs."""
    data_parallel: int
    samples_per_rank: int
    """Most samples of a mini-batch that one data-parallel rank works on."""
    micro_batch_limit: str
    """What ends a micro-batch, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchArithmetic:
    """Every number that follows from the batch sizes."""

    prompts_per_step: int
    samples_per_step: int
    prompts_per_engine: int
    """Most prompts one rollout engine answers at once."""
    group_filter: str | None
    """What ends the sampling of a step, in words; None where every step samples once."""
    roles: tuple[RoleBatches, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Table for the terminal: what, how many."""
        lines = [
            ("prompts / step", str(self.prompts_per_step)),
            ("samples / step", str(self.samples_per_step)),
            ("prompts / engine", str(self.prompts_per_engine)),
        ]
        lines += [("sampling", self.group_filter)] if self.group_filter else []
        for role in self.roles:
            lines += [
                (f"{role.role} samples / optimizer step", str(role.mini_batch_samples)),
                (f"{role.role} mini-batches / epoch", str(role.mini_batches_per_epoch)),
                (f"{role.role} optimizer steps / rollout", str(role.optimizer_steps)),
                (f"{role.role} samples / DP rank", f"{role.samples_per_rank} (DP {role.data_parallel})"),
                (f"{role.role} micro-batch", role.micro_batch_limit),
            ]
        return lines

    def table(self) -> str:
        """The rows as aligned text."""
        width = max(len(name) for name, _ in self.rows())
        return "\n".join(f"  {name:<{width}}  {value}" for name, value in self.rows())


def batch_arithmetic(config: RunConfig, world_size: int) -> BatchArithmetic:
    """Compute the table of a valid configuration."""
    prompts, n = config.data.train_batch_size, config.rollout.n
    engines = config.rollout.data_parallel_size or max(1, world_size // config.rollout.tensor_parallel_size)
    return BatchArithmetic(
        prompts_per_step=prompts,
        samples_per_step=prompts * n,
        prompts_per_engine=-(-config.data.prompts_per_gen_batch // engines),
        group_filter=_group_filter(config) if config.algorithm.filter_groups.enable else None,
        roles=tuple(_role_batches(name, role, prompts, n, world_size) for name, role in _trained_roles(config)),
    )


def _group_filter(config: RunConfig) -> str:
    wanted, rule = config.data.train_batch_size, config.algorithm.filter_groups
    limit = f"at most {rule.max_num_gen_batches} gen batches a step" if rule.max_num_gen_batches else "no limit"
    return f"{config.data.prompts_per_gen_batch} prompts at once until {wanted} groups differ in {rule.metric}, {limit}"


def _trained_roles(config: RunConfig) -> list[tuple[str, TrainedRoleConfig]]:
    roles: list[tuple[str, TrainedRoleConfig]] = [("actor", config.actor)]
    return [*roles, ("critic", config.critic)] if config.uses_critic else roles


def _role_batches(name: str, role: TrainedRoleConfig, prompts: int, n: int, world_size: int) -> RoleBatches:
    mini = role.ppo_mini_batch_size or prompts
    data = max(1, data_degree(role.parallel, world_size))
    limit = (
        f"{role.ppo_max_token_len_per_gpu} tokens" if role.use_dynamic_bsz else f"{role.ppo_micro_batch_size_per_gpu} sequences"
    )
    return RoleBatches(
        role=name,
        mini_batch_samples=mini * n,
        mini_batches_per_epoch=prompts // mini,
        optimizer_steps=prompts // mini * role.ppo_epochs,
        data_parallel=data,
        samples_per_rank=-(-mini * n // data),
        micro_batch_limit=limit,
    )


def batch_problems(config: RunConfig, world_size: int) -> Iterator[str]:
    """Batch sizes that cannot be, each with the two nearest legal values."""
    prompts, n = config.data.train_batch_size, config.rollout.n
    longest = config.data.max_prompt_length + config.data.max_response_length
    for name, role in _trained_roles(config):
        mini = role.ppo_mini_batch_size or prompts
        if prompts % mini != 0:
            yield (
                f"{name}.ppo_mini_batch_size={mini} prompts does not divide data.train_batch_size={prompts}; "
                f"nearest legal values: {nearest_legal(mini, divisors(prompts))}"
            )
        data = data_degree(role.parallel, world_size)
        if data > 0 and mini * n < data:
            yield (
                f"{name}: one optimizer step has {mini} prompts * rollout.n={n} = {mini * n} samples for {data} "
                f"data-parallel ranks, so some would have none; raise {name}.ppo_mini_batch_size or rollout.n"
            )
        if not role.use_dynamic_bsz and role.ppo_micro_batch_size_per_gpu is None:
            yield (
                f"{name}.use_dynamic_bsz=false needs {name}.ppo_micro_batch_size_per_gpu: "
                "without a token budget, the number of sequences ends a micro-batch"
            )
        if role.use_dynamic_bsz and role.ppo_max_token_len_per_gpu < longest:
            yield (
                f"{name}.ppo_max_token_len_per_gpu={role.ppo_max_token_len_per_gpu} cannot hold one sample of up to "
                f"{longest} tokens (data.max_prompt_length + data.max_response_length); use at least {longest}"
            )


def nearest_legal(value: int, legal: list[int]) -> str:
    """The closest legal values below and above, as text."""
    below = [n for n in legal if n < value]
    above = [n for n in legal if n > value]
    return " or ".join(str(n) for n in (*below[-1:], *above[:1]))
