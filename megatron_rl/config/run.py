"""The root of a run's configuration."""

from __future__ import annotations

from pydantic import Field

from megatron_rl.config.algorithm import AlgorithmConfig
from megatron_rl.config.base import Section
from megatron_rl.config.cluster import LauncherConfig
from megatron_rl.config.data import DataConfig, RewardConfig
from megatron_rl.config.model import ModelConfig
from megatron_rl.config.profiler import ProfilerConfig
from megatron_rl.config.rollout import RolloutConfig, WeightSyncConfig
from megatron_rl.config.tools import ConvertConfig, GenerateConfig
from megatron_rl.config.training import (
    ActorConfig,
    CriticConfig,
    ReferenceConfig,
    SftConfig,
    TrainerConfig,
)


class RunConfig(Section):
    """Everything one run needs; composed by Hydra, validated here, passed down by section."""

    model: ModelConfig = Field(description="Shape, weights, tokenizer.")
    actor: ActorConfig = Field(description="The policy.")
    critic: CriticConfig = Field(description="The value model.")
    ref: ReferenceConfig = Field(description="The reference policy.")
    rollout: RolloutConfig = Field(description="The rollout engine.")
    weight_sync: WeightSyncConfig = Field(description="Actor to engine transfer.")
    algorithm: AlgorithmConfig = Field(description="Advantages and KL.")
    data: DataConfig = Field(description="Prompts.")
    reward: RewardConfig = Field(description="Scoring.")
    trainer: TrainerConfig = Field(description="The loop.")
    sft: SftConfig = Field(description="Supervised fine-tuning.")
    convert: ConvertConfig = Field(description="Checkpoint conversion.")
    generate: GenerateConfig = Field(description="Sampling into a file.")
    launcher: LauncherConfig = Field(description="Starting the ranks.")
    profiler: ProfilerConfig = Field(description="Profiling.")

    @property
    def uses_critic(self) -> bool:
        """Whether a value model is built."""
        return self.algorithm.adv_estimator == "gae" if self.critic.enable is None else self.critic.enable

    @property
    def uses_reference(self) -> bool:
        """Whether a reference policy is built: only where a KL term reads it."""
        return self.algorithm.use_kl_in_reward or self.actor.use_kl_loss
