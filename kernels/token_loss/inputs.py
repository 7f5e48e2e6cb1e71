"""What the token loss is given and what it answers. All tensors share one shape, called T here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before ``exp``."""

KlKind = Literal["k1", "k2", "k3", "abs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLossRule:
    """Constants of the loss. Example: ``TokenLossRule(clip_high=0.28, entropy_coeff=0.01)``."""

    clip_low: float = 0.2
    """The ratio is bounded from below by ``1 - clip_low``."""
    clip_high: float = 0.2
    """The ratio is bounded from above by ``1 + clip_high``."""
    clip_c: float | None = 3.0
    """Dual clip; None = off."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    kl_coeff: float = 0.0
    """Weight of the KL to the reference."""
    kl_kind: KlKind = "k3"
    """Estimator of that KL."""

    def __post_init__(self) -> None:
        if self.kl_kind not in ("k1", "k2", "k3", "abs"):
            raise ValueError(f"kernels.token_loss: kl_kind={self.kl_kind!r} is none of k1, k2, k3, abs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLossInputs:
    """One micro-batch. Cells outside the mask may hold anything, NaN included."""

    logprobs: Tensor
    """f32, under the policy being trained; gradients flow."""
    old_logprobs: Tensor
    """f32, under the policy before the update."""
    advantages: Tensor
    """f32."""
    weights: Tensor
    """f32, factor of each token in the sum; holds the denominator."""
    mask: Tensor
    """bool, tokens that count."""
    importance: Tensor | None = None
    """f32, factor of the surrogate alone (rollout correction); None = 1."""
    ref_logprobs: Tensor | None = None
    """f32, under the reference; needed where ``kl_coeff`` is not 0."""
    entropy: Tensor | None = None
    """f32, nats; gradients flow. Needed where ``entropy_coeff`` is not 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLossSums:
    """f32 scalars over the mask; only ``loss`` has a graph."""

    loss: Tensor
    """``sum w (c L - entropy_coeff H + kl_coeff KL)``."""
    surrogate: Tensor
    """``sum w c L``."""
    entropy: Tensor
    """``sum w H``."""
    kl: Tensor
    """``sum KL``, unweighted."""
    num_clipped: Tensor
    """Tokens whose bound is active."""
    num_clipped_lower: Tensor
    """Tokens whose dual clip is active."""
    old_kl: Tensor
    """``sum -log rho``, unweighted."""
    max_ratio_deviation: Tensor
    """``max |rho - 1|``."""


def checked_rule(inputs: TokenLossInputs, rule: TokenLossRule) -> None:
    """Programmer errors: a term without its tensor."""
    assert rule.kl_coeff == 0 or inputs.ref_logprobs is not None, "kl_coeff without ref_logprobs"
    assert rule.entropy_coeff == 0 or inputs.entropy is not None, "entropy_coeff without entropy"
