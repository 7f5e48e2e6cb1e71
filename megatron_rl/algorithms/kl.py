"""Estimators of KL(policy || reference) from sampled tokens, and the coefficient of its penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from megatron_rl.config.algorithm import KlControlConfig

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before ``exp``: e^20 is finite in float32, and no useful token is that far off."""


def k1(log_ratio: Tensor) -> Tensor:
    """Unbiased, high variance: ``log pi/ref``. As a *loss* its expected gradient is zero; use it in the reward."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Biased, low variance: ``(log pi/ref)^2 / 2``. Its gradient is the on-policy gradient of the KL."""
    return 0.5 * log_ratio.square()


def k3(log_ratio: Tensor) -> Tensor:
    """Unbiased, low variance, never negative: ``ref/pi - 1 + log pi/ref``."""
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(-bounded) + bounded


def absolute(log_ratio: Tensor) -> Tensor:
    """``|log pi/ref|``: not a KL, a distance."""
    return log_ratio.abs()


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute}
"""Names of ``algorithm.kl_penalty`` and ``actor.kl_loss_type``."""


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: str) -> Tensor:
    """Estimate the KL on each token the policy sampled (Schulman 2020, "Approximating KL divergence").

    Args:
        logprobs: f32, the policy's log-probs of the tokens, any shape; gradients flow through them.
        ref_logprobs: f32, the reference's.
        kind: ``k1``, ``k2``, ``k3`` or ``abs``.

    Returns:
        nats per token, same shape. Garbage in gives garbage out, cell by cell: the caller masks.
    """
    return KL_ESTIMATORS[kind](logprobs - ref_logprobs)


class KlController(Protocol):
    """Holds the coefficient of the KL penalty in the reward."""

    value: float
    """The coefficient."""

    def adapt(self, kl: float, num_samples: int) -> None:
        """React to the KL per token of a step with ``num_samples`` samples."""

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint keeps."""

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore from a checkpoint."""


class FixedKlController:
    """A coefficient that stays."""

    def __init__(self, value: float) -> None:
        self.value = value

    def adapt(self, kl: float, num_samples: int) -> None:
        """Nothing to do."""

    def state_dict(self) -> dict[str, float]:
        """The coefficient."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Nothing to do: the configured coefficient rules, also after a resume with another one."""


class AdaptiveKlController:
    """Proportional control towards a target KL (Ziegler et al. 2019, sec. 2.2; arXiv 1909.08593).

    ``error = clip(kl / target - 1, -0.2, 0.2)``, ``value *= 1 + error * num_samples / horizon``.
    """

    def __init__(self, value: float, target: float, horizon: int) -> None:
        self.value = value
        self.target = target
        self.horizon = horizon

    def adapt(self, kl: float, num_samples: int) -> None:
        """Move the coefficient by at most ``0.2 * num_samples / horizon`` of itself."""
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        self.value *= 1.0 + error * num_samples / self.horizon

    def state_dict(self) -> dict[str, float]:
        """The coefficient."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from the saved coefficient."""
        self.value = state["value"]


def build_kl_controller(config: KlControlConfig) -> KlController:
    """Make the controller ``algorithm.kl_ctrl`` asks for."""
    if config.type == "fixed":
        return FixedKlController(config.kl_coef)
    return AdaptiveKlController(config.kl_coef, config.target_kl, config.horizon)
