"""What is estimated: which roles run how on which cards, and the work of one step. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.flops import Head
from megatron_rl.parallel.layout import ParallelLayout

RoleName = Literal["actor", "critic", "reference"]
Recompute = Literal["none", "selective", "full"]
Residency = Literal["always", "own_phase", "never"]
"""When a part of a role's state is on the GPU; outside of it the part is in host memory, or (gradients) nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSetup:
    """One Megatron role. Example: the actor on TP2, PP1, DP2 with 16,384 tokens in a micro-batch."""

    name: RoleName
    layout: ParallelLayout
    micro_batch_tokens: int
    recompute: Recompute = "none"
    trained: bool = True
    distributed_optimizer: bool = True
    gradient_bytes: int = 4
    """Per parameter, of the data-parallel wrapper's buffer."""
    master_bytes: int = 4
    """Per 16-bit parameter; f32 parameters are their own master copy."""
    moment_bytes: int = 8
    """Per parameter, both."""
    separable_loss: bool = True
    """Whether the loss is a sum over tokens, so that it can be taken where the logits are (kernels.linear_logprob)."""
    weights: Residency = "always"
    gradients: Residency = "always"
    optimizer: Residency = "always"

    @property
    def head(self) -> Head:
        """A critic has one value per token instead of the vocabulary."""
        return "value" if self.name == "critic" else "lm"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """The rollout engines: ``data`` of them, each cut over ``tensor`` ranks."""

    tensor: int
    data: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_bytes: int
    """Per rank."""
    prefix_caching: bool = True
    cuda_graphs: bool = True
    aliased: bool = True
    """Whether it reads the actor's weights in place where both store the same bytes."""
    quantised: bool = False
    """Whether it keeps linear weights in block-scaled FP8, which are its own in any case."""
    sleeps: bool = False
    """Whether its cache and its own weights leave the GPU between rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Roles that share the same cards, every role on all of them."""

    model: ModelConfig
    roles: tuple[RoleSetup, ...]
    engine: EngineSetup | None
    weight_bytes: int = 2
    """Per element: 2 = bf16, 4 = f32."""
    sync_budget_bytes: int = 256 * 2**20
    on_gpu: bool = True
    fused_adam: bool = True
    """Whether an Adam step is one kernel (Transformer Engine) or makes temporary copies (torch)."""

    @property
    def num_gpus(self) -> int:
        """Ranks of every role."""
        return self.roles[0].layout.world_size

    def role(self, name: RoleName) -> RoleSetup | None:
        """A role by name; None where it does not live here."""
        return next((role for role in self.roles if role.name == name), None)

    def optimizer_bytes(self, role: RoleSetup) -> int:
        """Of one parameter's optimizer state."""
        return role.moment_bytes + (role.master_bytes if self.weight_bytes == 2 else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One step's work and how often it is done. Lengths in tokens."""

    prompts_per_step: int
    samples_per_prompt: int
    prompt_tokens: float
    """Mean."""
    response_tokens: float
    """Mean."""
    max_prompt_tokens: int
    max_response_tokens: int
    num_prompts: int
    """In the data set."""
    epochs: int
    uses_critic: bool
    uses_reference: bool
    actor_optimizer_steps: int = 1
    """Per rollout: mini-batches * ppo_epochs."""
    actor_passes: int = 1
    """ppo_epochs: how often each sample is trained on."""
    critic_optimizer_steps: int = 1
    critic_passes: int = 1
    fixed_steps: int | None = None
    """Steps of the whole run where they do not follow from the epochs."""
    longest_response_tokens: float | None = None
    """Of a usual step; None = ``max_response_tokens``."""
    squared_tokens: float | None = None
    """Mean of (prompt + response)^2; None = the square of the mean length."""
    scores_actor: bool = True
    """Whether the policy's log-probs are computed before the update."""

    @property
    def samples_per_step(self) -> int:
        """Responses of one step."""
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def sample_tokens(self) -> float:
        """Mean tokens of one sample, prompt and response."""
        return self.prompt_tokens + self.response_tokens

    @property
    def attended_tokens(self) -> float:
        """Mean of the squared length of a sample."""
        return self.sample_tokens**2 if self.squared_tokens is None else self.squared_tokens

    @property
    def last_response_tokens(self) -> float:
        """Of the answer that ends last."""
        return self.max_response_tokens if self.longest_response_tokens is None else self.longest_response_tokens

    @property
    def longest_sample_tokens(self) -> int:
        """Most tokens of one sample."""
        return self.max_prompt_tokens + self.max_response_tokens

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of one pass, at least one; the trainer drops an incomplete last batch."""
        return max(1, self.num_prompts // self.prompts_per_step)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.epochs * self.steps_per_epoch if self.fixed_steps is None else self.fixed_steps
