"""Policy-gradient losses per token: one function per equation, all called ``loss(inputs) -> PolicyLossTerms``.

They do not average; loss_weights.py does. Tensors have one shared shape, packed ``[T]`` or padded ``[B, S]``.
Notation: ``rho_t = pi(t) / pi_old(t)``, ``sg`` = no gradient, A the advantage. Cells outside the mask may hold anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_rl.algorithms.kl import MAX_LOG_RATIO
from megatron_rl.algorithms.masked_stats import keep

SAPO_TEMPERATURE_POSITIVE = 1.0
SAPO_TEMPERATURE_NEGATIVE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossInputs:
    """What every policy loss is given."""

    logprobs: Tensor
    """f32, under the policy being trained; gradients flow."""
    old_logprobs: Tensor
    """f32, under the policy before the update."""
    advantages: Tensor
    """f32."""
    mask: Tensor
    """bool, response tokens."""
    segment_ids: Tensor
    """i64, the sample of each cell, in [0, num_segments); samples are never split. Read by sequence-level losses."""
    num_segments: int
    """Samples."""
    clip_low: float = 0.2
    """rho is bounded from below by ``1 - clip_low``."""
    clip_high: float = 0.2
    """rho is bounded from above by ``1 + clip_high``."""
    clip_c: float | None = 3.0
    """Dual clip; None = off."""

    @property
    def clean_logprobs(self) -> Tensor:
        """``log pi``, 0 outside the mask."""
        return keep(self.logprobs, self.mask)

    @property
    def log_ratio(self) -> Tensor:
        """``log rho``, within +-20, 0 outside the mask."""
        raw = self.clean_logprobs - keep(self.old_logprobs, self.mask)
        return raw.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def clean_advantages(self) -> Tensor:
        """A, 0 outside the mask."""
        return keep(self.advantages, self.mask)

    def segment_mean(self, x: Tensor) -> Tensor:
        """Give each cell the mean of ``x`` (0 outside the mask) over its sample's response tokens."""
        ids = self.segment_ids.flatten()
        total = x.new_zeros(self.num_segments).index_add(0, ids, x.flatten())
        count = x.new_zeros(self.num_segments).index_add(0, ids, self.mask.flatten().to(x.dtype))
        return (total / count.clamp(min=1))[ids].view_as(x)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossTerms:
    """Loss and diagnostics of each token, 0 or False outside the mask."""

    loss: Tensor
    """f32."""
    clipped: Tensor
    """bool, the bound on rho is active: the token gives no gradient (``actor/pg_clipfrac``)."""
    clipped_lower: Tensor
    """bool, the dual clip is active (``actor/pg_clipfrac_lower``)."""


def vanilla(inputs: PolicyLossInputs) -> PolicyLossTerms:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7; arXiv 1707.06347) with dual clip (Ye et al. 2020, eq. 5).

    ``L = -min(rho A, clip(rho, 1 - low, 1 + high) A)``, and for A < 0 at most ``-c A``. Unequal bounds are clip-higher
    (Yu et al. 2025, sec. 3.1; arXiv 2503.14476).
    """
    return _clipped_surrogate(inputs, torch.exp(inputs.log_ratio), inputs.clip_c)


def gspo(inputs: PolicyLossInputs) -> PolicyLossTerms:
    """Group sequence policy optimisation, token form (Zheng et al. 2025, eq. 13-14; arXiv 2507.18071).

    ``s = exp(mean_t log rho_t)`` over the sample, ``s_t = sg(s) * pi(t) / sg(pi(t))``, clipped as in PPO. The paper
    averages with ``seq-mean-token-mean``; here ``actor.loss_agg_mode`` decides.
    """
    log_ratio = inputs.log_ratio
    logprobs = inputs.clean_logprobs
    sequence = inputs.segment_mean(log_ratio).detach() + logprobs - logprobs.detach()
    return _clipped_surrogate(inputs, torch.exp(sequence), clip_c=None)


def cispo(inputs: PolicyLossInputs) -> PolicyLossTerms:
    """Clipped importance weights, every token keeps its gradient (MiniMax 2025, eq. 4; arXiv 2506.13585).

    ``L = -sg(clip(rho, 1 - low, 1 + high)) * A * log pi(t)``.
    """
    ratio = torch.exp(inputs.log_ratio).detach()
    bounded = ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    loss = -bounded * inputs.clean_advantages * inputs.clean_logprobs
    return _terms(inputs, loss, clipped=bounded != ratio)


def sapo(inputs: PolicyLossInputs) -> PolicyLossTerms:
    """Soft adaptive gate instead of a clip (Qwen team 2025; arXiv 2511.20347).

    ``L = -A * (4 / tau) * sigmoid(tau (rho - 1))``, tau = 1 for A > 0 and 1.05 otherwise. At rho = 1 its gradient is PPO's.
    """
    advantages = inputs.clean_advantages
    tau = torch.where(advantages > 0, SAPO_TEMPERATURE_POSITIVE, SAPO_TEMPERATURE_NEGATIVE)
    gate = 4.0 / tau * torch.sigmoid(tau * (torch.exp(inputs.log_ratio) - 1.0))
    return _terms(inputs, -advantages * gate)


def geo_mean(inputs: PolicyLossInputs) -> PolicyLossTerms:
    """Geometric-mean policy optimisation (Zhao et al. 2025, eq. 4; arXiv 2507.20673).

    ``L = -A_mean * exp(mean_t c_t)`` on every token of the sample, where ``c_t`` is ``log rho_t`` clipped to
    ``[-low, high]`` on the side the advantage's sign makes profitable. The paper averages over samples, i.e.
    ``seq-mean-token-mean``; here ``actor.loss_agg_mode`` decides.
    """
    log_ratio, advantages = inputs.log_ratio, inputs.clean_advantages
    sign = torch.sign(advantages)
    bounded = log_ratio.clamp(-inputs.clip_low, inputs.clip_high)
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * bounded)
    ratio = torch.exp(inputs.segment_mean(keep(pessimistic, inputs.mask)))
    loss = -inputs.segment_mean(advantages) * ratio
    return _terms(inputs, keep(loss, inputs.mask), clipped=pessimistic != log_ratio)


def gpg(inputs: PolicyLossInputs) -> PolicyLossTerms:
    """Plain policy gradient without a ratio (Chu et al. 2025, eq. 7; arXiv 2504.02546): ``L = -A log pi(t)``."""
    return _terms(inputs, -inputs.clean_advantages * inputs.clean_logprobs)


POLICY_LOSSES: dict[str, Callable[[PolicyLossInputs], PolicyLossTerms]] = {
    "vanilla": vanilla,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "geo_mean": geo_mean,
    "gpg": gpg,
}
"""Names of ``actor.policy_loss``."""


def _clipped_surrogate(inputs: PolicyLossInputs, ratio: Tensor, clip_c: float | None) -> PolicyLossTerms:
    advantages = inputs.clean_advantages
    free = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    loss = torch.maximum(free, bounded)
    clipped = bounded > free
    if clip_c is None:
        return _terms(inputs, loss, clipped)
    ceiling = -advantages * clip_c
    lower = (advantages < 0) & (loss > ceiling)
    return _terms(inputs, torch.where(lower, ceiling, loss), clipped, lower)


def _terms(
    inputs: PolicyLossInputs, loss: Tensor, clipped: Tensor | None = None, clipped_lower: Tensor | None = None
) -> PolicyLossTerms:
    never = torch.zeros_like(inputs.mask)
    return PolicyLossTerms(
        loss=loss,
        clipped=never if clipped is None else clipped & inputs.mask,
        clipped_lower=never if clipped_lower is None else clipped_lower & inputs.mask,
    )
