"""One small model under each layer spec and dtype: scores and gradients of the same weights and batch, by our names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from megatron_rl.config.model import ModelConfig, TransformerImpl
from megatron_rl.config.training import OptimConfig, TrainedRoleConfig
from megatron_rl.parallel.groups import GroupRegistry
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.types.batches import MiniBatch
from tests.models.plain_cpu import on_plain_cpu
from tests.support.distributed import run_distributed
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import RatioLoss

Arrays = dict[str, np.ndarray]


def parity_model(*, qk_norm: bool, tied: bool) -> ModelConfig:
    """Four layers of hidden 512, 8 heads of 64 over 2 key/value heads."""
    wider = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
    return tiny_model(tied=tied, qk_norm=qk_norm).model_copy(update=wider)


def parity_batch() -> MiniBatch:
    """Eight documents of up to 120 tokens; the role cuts them into several micro-batches."""
    return ragged_batch(8, width=128)


@dataclass(frozen=True)
class Variant:
    """What computes. Example: ``Variant("transformer_engine", "bfloat16")``."""

    implementation: TransformerImpl
    dtype: str


@dataclass(frozen=True)
class Answer:
    """Of one variant."""

    logprobs_BS: np.ndarray
    gradients: Arrays


def build(model: ModelConfig, variant: Variant, weights: Arrays | None = None) -> MegatronRole:
    """A trained role, with the seeded random weights or the given ones."""
    role = MegatronRole.build(
        model.model_copy(update={"transformer_impl": variant.implementation}),
        TrainedRoleConfig(optim=OptimConfig(lr=1e-3), ppo_max_token_len_per_gpu=192),
        ParallelLayout(),
        GroupRegistry(),
        Platform.detect(dtype=variant.dtype),  # type: ignore[arg-type]
        total_optimizer_steps=10,
        seed=3,
    )
    if weights is not None:
        with torch.no_grad():
            for name, parameter in role.parameters.items():
                parameter.copy_(torch.from_numpy(weights[name]))
        role.weights_changed()
    return role


def weights_of(role: MegatronRole) -> Arrays:
    """Copies of the role's parameters, f32."""
    return {name: p.detach().float().cpu().numpy() for name, p in role.parameters.items()}


def answer(model: ModelConfig, variant: Variant, weights: Arrays) -> Answer:
    """Score the batch and run one update on it."""
    role = build(model, variant, weights)
    batch = parity_batch()
    logprobs_BS = role.score(batch)[0].cpu().numpy()
    role.update(batch, RatioLoss())
    gradients = {name: p.main_grad.float().cpu().numpy() for name, p in role.parameters.items()}
    return Answer(logprobs_BS, gradients)


def answer_on_cpu(model: ModelConfig, weights: Arrays) -> Answer:
    """The same in f32 on the CPU of a host with GPUs, in a process that sees neither them nor Transformer Engine."""
    with _hidden_gpus():
        (answered,) = run_distributed(1, on_plain_cpu, model, weights, fresh=True)
    assert isinstance(answered, Answer)
    return answered


@contextmanager
def _hidden_gpus() -> Iterator[None]:
    previous = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if previous is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = previous


@dataclass(frozen=True)
class Distance:
    """How far one answer is from another."""

    logprob_mean: float
    """Mean absolute difference over response tokens, nats."""
    logprob_max: float
    gradient_errors: dict[str, float]
    """Of each parameter: ``|a - b| / |b|`` in the L2 norm."""

    @property
    def worst_gradient(self) -> tuple[float, str]:
        """Largest of them, with its parameter."""
        return max((error, name) for name, error in self.gradient_errors.items())


def distance(actual: Answer, expected: Answer) -> Distance:
    """Compare log-probs and every gradient; both must name the same parameters."""
    assert actual.gradients.keys() == expected.gradients.keys()
    apart = np.abs(actual.logprobs_BS - expected.logprobs_BS)[expected.logprobs_BS != 0.0]
    errors = {
        name: float(np.linalg.norm(actual.gradients[name] - gradient) / np.linalg.norm(gradient))
        for name, gradient in expected.gradients.items()
    }
    return Distance(float(apart.mean()), float(apart.max()), errors)
