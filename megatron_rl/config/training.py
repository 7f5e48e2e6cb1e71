"""Training roles and the loop around them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from megatron_rl.config.algorithm import KlEstimator
from megatron_rl.config.base import Section
from megatron_rl.config.parallel import ParallelConfig

LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
PolicyLoss = Literal["vanilla", "gspo", "cispo", "sapo", "geo_mean", "gpg"]
SEQUENCE_LEVEL_LOSSES: frozenset[PolicyLoss] = frozenset({"gspo", "geo_mean"})
"""Policy losses in which a token's term depends on the other tokens of its sample."""

OptimizerDtype = Literal["float32", "bfloat16"]


class OptimConfig(Section):
    """AdamW and its learning-rate schedule."""

    lr: NonNegativeFloat = Field(1e-6, description="Peak learning rate.")
    min_lr: NonNegativeFloat = Field(0.0, description="Floor of a decaying schedule.")
    lr_warmup_steps: NonNegativeInt = Field(0, description="Optimizer steps of linear warm-up.")
    lr_decay_style: Literal["constant", "linear", "cosine"] = Field("constant", description="Shape after warm-up.")
    lr_decay_steps: PositiveInt | None = Field(None, description="Optimizer steps until min_lr; null = whole run.")
    weight_decay: NonNegativeFloat = Field(0.01, description="Decoupled weight decay.")
    betas: tuple[float, float] = Field((0.9, 0.999), strict=False, description="Adam's moment decays.")
    eps: PositiveFloat = Field(1e-8, description="Adam's epsilon.")
    clip_grad: NonNegativeFloat = Field(1.0, description="Global gradient-norm clip; 0 = off.")
    use_distributed_optimizer: bool = Field(True, description="Shard optimizer state over DP.")
    overlap_grad_reduce: bool = Field(False, description="Reduce gradients over DP while the backward pass goes on.")
    overlap_param_gather: bool = Field(False, description="Gather weights over DP while the next forward pass goes on.")
    use_precision_aware_optimizer: bool = Field(
        False,
        description="Transformer Engine's Adam with f32 master weights in 2 extra bytes a parameter, and the dtypes below.",
    )
    main_grads_dtype: OptimizerDtype = Field("float32", description="Of gradient buffers and their reduction.")
    exp_avg_dtype: OptimizerDtype = Field("float32", description="Of Adam's first moment.")
    exp_avg_sq_dtype: OptimizerDtype = Field("float32", description="Of Adam's second moment.")


class RecomputeConfig(Section):
    """Activation recomputation."""

    granularity: Literal["selective", "full"] | None = Field(None, description="null = keep all activations.")
    method: Literal["uniform", "block"] = Field("uniform", description="Which layers (granularity=full).")
    num_layers: PositiveInt = Field(1, description="Layers per recomputed unit (granularity=full).")


class TrainedRoleConfig(Section):
    """What actor and critic share."""

    parallel: ParallelConfig = Field(ParallelConfig(), description="This role's own layout.")
    optim: OptimConfig = Field(OptimConfig(), description="Optimizer.")
    recompute: RecomputeConfig = Field(RecomputeConfig(), description="Activation recomputation.")
    use_dynamic_bsz: bool = Field(
        True,
        description="Cut micro-batches by tokens (ppo_max_token_len_per_gpu), else by sequences; same result.",
    )
    ppo_max_token_len_per_gpu: PositiveInt = Field(16384, description="Tokens in one packed micro-batch.")
    ppo_micro_batch_size_per_gpu: PositiveInt | None = Field(
        None, description="Sequences per micro-batch where use_dynamic_bsz=false."
    )
    ppo_mini_batch_size: PositiveInt | None = Field(
        None, description="Prompts per optimizer step (samples = this * rollout.n); null = the whole batch."
    )
    ppo_epochs: PositiveInt = Field(1, description="Passes over each rollout batch.")
    shuffle: bool = Field(False, description="Shuffle samples before cutting mini-batches.")
    loss_agg_mode: LossAggMode = Field("token-mean", description="How token losses are averaged, over global counts.")
    load_path: str | None = Field(None, description="Hugging Face folder of this role's weights; null = model.path.")
    grad_offload: bool = Field(False, description="Free the gradient buffers outside of this role's update.")
    optimizer_offload: bool = Field(
        False, description="Keep moments and master weights in host memory outside of this role's update."
    )


class ActorConfig(TrainedRoleConfig):
    """The policy under training."""

    policy_loss: PolicyLoss = Field("vanilla", description="Policy-gradient objective.")
    reuse_logprobs: bool | None = Field(
        None,
        description="Take old log-probs from the update's own forward pass instead of scoring before it; null = where one "
        "optimizer step per rollout makes both the same and nothing reads them earlier.",
    )
    clip_ratio: PositiveFloat = Field(0.2, description="PPO clip range.")
    clip_ratio_low: PositiveFloat | None = Field(None, description="Lower clip range; null = clip_ratio.")
    clip_ratio_high: PositiveFloat | None = Field(None, description="Upper clip range; null = clip_ratio.")
    clip_ratio_c: float | None = Field(3.0, gt=1.0, description="Dual clip for negative advantages; null = off.")
    entropy_coeff: float = Field(0.0, description="Entropy bonus; 0 costs nothing.")
    use_kl_loss: bool = Field(False, description="Add kl_loss_coef * KL(policy || reference) to the loss.")
    kl_loss_coef: NonNegativeFloat = Field(0.001, description="Coefficient of that term.")
    kl_loss_type: KlEstimator = Field("k3", description="Its estimator.")


class CriticConfig(TrainedRoleConfig):
    """The value model: same backbone, a value head, its own layout."""

    optim: OptimConfig = Field(OptimConfig(lr=1e-5), description="Optimizer.")
    enable: bool | None = Field(None, description="null = only where the advantage estimator needs values.")
    cliprange_value: NonNegativeFloat = Field(0.5, description="Clip of the value change; 0 = off.")
    value_loss_coef: PositiveFloat = Field(0.5, description="Factor of the squared error.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps in which only the critic is trained.")
    param_offload: bool = Field(False, description="Keep the critic's weights in host memory while it is not in use.")


class ReferenceConfig(Section):
    """The frozen policy of the KL terms; built only where a KL term is in use."""

    parallel: ParallelConfig | None = Field(None, description="Its layout; null = the actor's.")
    load_path: str | None = Field(None, description="Hugging Face folder; null = the actor's first weights.")
    param_offload: bool = Field(False, description="Keep its weights in host memory while it does not score.")


class TrainerConfig(Section):
    """The loop: length, saving, validation, logging."""

    project_name: str = Field("megatron_rl", description="Project in the trackers.")
    experiment_name: str = Field("run", description="Run name; resuming finds the run by it.")
    output_dir: str = Field("outputs", description="Run folders go to output_dir/project_name/experiment_name.")
    seed: NonNegativeInt = Field(0, description="Seed of data order, sampling and initial weights.")
    nnodes: PositiveInt = Field(1, description="Nodes.")
    n_gpus_per_node: PositiveInt | None = Field(
        None, description="Ranks per node; null = visible GPUs, or on CPU the fewest the layouts need."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto = cuda where there is a GPU.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="Compute dtype; auto = bfloat16 on GPU.")
    total_training_steps: PositiveInt | None = Field(None, description="Steps; null = total_epochs over the data.")
    total_epochs: PositiveInt = Field(1, description="Passes over the prompts where total_training_steps is null.")
    save_freq: int = Field(-1, description="Save every so many steps and at the end; -1 = only when a signal stops the run.")
    max_checkpoints_to_keep: PositiveInt | None = Field(None, description="Older ones are removed; null = keep all.")
    save_hf_at_end: bool = Field(False, description="Export the final policy as a Hugging Face folder.")
    test_freq: int = Field(-1, description="Validate every so many steps; -1 = never.")
    val_before_train: bool = Field(True, description="Validate before the first step (where there is validation data).")
    val_at_end: bool = Field(True, description="Validate after the last step (where there is validation data).")
    resume_mode: Literal["auto", "disable", "path"] = Field("auto", description="auto = newest complete checkpoint.")
    resume_path: str | None = Field(None, description="Checkpoint folder for resume_mode=path.")
    logger: list[Literal["console", "wandb", "tensorboard"]] = Field(["console"], description="Sinks; JSONL is always written.")
    log_samples: NonNegativeInt = Field(4, description="Rollouts per step kept in samples.jsonl.")
    callbacks: list[str] = Field([], description="TrainerCallback classes as module:Class or file.py:Class.")
    replica_check_freq: NonNegativeInt = Field(
        50, description="Every so many steps compare replicated parameters across ranks bit for bit; 0 = off."
    )
    collective_timeout_s: PositiveInt = Field(600, description="A collective that waits longer ends the job, seconds.")


class SftConfig(Section):
    """Supervised fine-tuning on prompt/response pairs."""

    train_files: list[str] = Field([], description="JSONL or Parquet with data.prompt_key and response_key.")
    response_key: str = Field("response", description="Column with the target text; loss is on it and the EOS only.")
    batch_size: PositiveInt = Field(64, description="Sequences per optimizer step.")
    total_steps: PositiveInt | None = Field(None, description="Optimizer steps; null = total_epochs.")
    total_epochs: PositiveInt = Field(1, description="Passes where total_steps is null.")
    log_freq: PositiveInt = Field(10, description="Console line every so many steps.")
