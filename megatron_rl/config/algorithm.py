"""What is optimised: advantage estimator and KL treatment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from megatron_rl.config.base import Section

KlEstimator = Literal["k1", "k2", "k3", "abs"]
AdvantageEstimator = Literal[
    "gae", "grpo", "dr_grpo", "rloo", "opo", "gpg", "reinforce_plus_plus", "reinforce_plus_plus_baseline"
]
GroupMetric = Literal["seq_reward", "acc"]


class KlControlConfig(Section):
    """Coefficient of the KL penalty that is subtracted from the reward."""

    type: Literal["fixed", "adaptive"] = Field("fixed", description="fixed, or adaptive (Ziegler et al. 2019, eq. 2).")
    kl_coef: NonNegativeFloat = Field(0.001, description="Coefficient, or its first value when adaptive.")
    horizon: PositiveInt = Field(10000, description="Samples over which the adaptive coefficient reacts.")
    target_kl: PositiveFloat = Field(0.1, description="KL per token the adaptive coefficient aims at, nats.")


class FilterGroupsConfig(Section):
    """Dynamic sampling (Yu et al. 2025, section 3.2): sample until enough groups have unequal answers."""

    enable: bool = Field(False, description="Sample until data.train_batch_size groups differ in metric; train on those.")
    metric: GroupMetric = Field(
        "seq_reward", description="What must differ within a group: the reward, or whether it exceeds 0.5."
    )
    max_num_gen_batches: NonNegativeInt = Field(
        0, description="Gen batches a step may sample; then the batch is filled up with groups of equal answers. 0 = no limit."
    )


class AlgorithmConfig(Section):
    """Advantage estimation and KL in the reward."""

    name: str = Field("ppo", description="Readable name of the composed algorithm.")
    adv_estimator: AdvantageEstimator = Field("gae", description="Advantage estimator.")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="Discount per token.")
    lam: float = Field(1.0, ge=0.0, le=1.0, description="GAE lambda (Schulman et al. 2016).")
    whiten_advantages: bool = Field(True, description="GAE: subtract the mean and divide by the std over the batch.")
    norm_adv_by_std_in_grpo: bool = Field(True, description="GRPO: divide by the group's std (false = Dr. GRPO).")
    use_kl_in_reward: bool = Field(False, description="Subtract kl_coef * KL(policy || reference) from each token's reward.")
    kl_penalty: KlEstimator = Field("k1", description="KL estimator in the reward (Schulman, Approximating KL).")
    kl_ctrl: KlControlConfig = Field(KlControlConfig(), description="Coefficient of the KL in the reward.")
    filter_groups: FilterGroupsConfig = Field(FilterGroupsConfig(), description="Dynamic sampling of DAPO.")
