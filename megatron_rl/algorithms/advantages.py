"""Advantage estimators: one function per equation, all called ``estimator(inputs) -> (advantages_BS, returns_BS)``.

Shape suffixes: B samples, S padded tokens; token coordinates (types/batches.py). Sums run in float64, results are
float32 and exactly 0 outside the mask. Notation: ``r_t`` the reward on token t, ``R = sum_t r_t`` over the response,
``m`` the group mean of R, t runs over the response tokens in order; observation tokens (gaps in the mask) are skipped.

The group estimators share three rules:

* Only valid samples with at least one response token form the baseline.
* A group that tells nothing, i.e. all rewards equal or a single valid sample, gets advantage exactly 0.
* Returns are the discounted rewards to go, so that a critic can be trained beside any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_rl.algorithms.group_stats import GroupStats, group_stats
from megatron_rl.algorithms.masked_stats import keep, masked_whiten
from megatron_rl.algorithms.scan import reverse_scan
from megatron_rl.types.masks import to_predicting_position

GRPO_STD_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """What every estimator is given. Cells outside the mask, and rows that are not valid, may hold anything."""

    token_rewards_BS: Tensor
    """float, reward on each response token (reward_shaping.py); finite where valid and masked in."""
    values_BS: Tensor
    """float, the critic's values; read by GAE only."""
    mask_BS: Tensor
    """bool, response tokens; gaps are observation tokens."""
    group_ids_B: Tensor
    """i64, samples of one prompt share an id."""
    valid_B: Tensor
    """bool, samples that count; the others get 0 and stay out of every baseline."""
    gamma: float = 1.0
    """Discount per response token."""
    lam: float = 1.0
    """GAE's lambda."""
    whiten: bool = True
    """GAE: whiten over the batch's response tokens."""
    divide_by_std: bool = True
    """GRPO: divide by the group's standard deviation."""

    def __post_init__(self) -> None:
        b, s = self.mask_BS.shape
        assert self.mask_BS.dtype == self.valid_B.dtype == torch.bool
        assert self.token_rewards_BS.shape == self.values_BS.shape == (b, s)
        assert self.group_ids_B.shape == self.valid_B.shape == (b,)
        broken_B = (self.counted_BS & ~torch.isfinite(self.token_rewards_BS)).any(dim=1)
        if broken_B.any():
            raise ValueError(
                f"rewards of samples {broken_B.nonzero().flatten().tolist()} are not finite: "
                "leave them out through valid_B (reward.on_invalid=mask) or replace them before the estimator"
            )

    @property
    def counted_BS(self) -> Tensor:
        """bool, response tokens of valid samples."""
        return self.mask_BS & self.valid_B[:, None]

    @property
    def rewards_BS(self) -> Tensor:
        """float64, token rewards, 0 where not counted."""
        return keep(self.token_rewards_BS, self.counted_BS).double()

    @property
    def returns_BS(self) -> Tensor:
        """float64, ``G_t = r_t + gamma * G_{t+1}`` over response tokens, 0 where not counted."""
        counted = self.counted_BS
        return keep(reverse_scan(_decay(counted, self.gamma), self.rewards_BS), counted)

    def group_stats(self, weights_B: Tensor | None = None) -> GroupStats:
        """Statistics of R by group."""
        return group_stats(self.rewards_BS.sum(dim=1), self.group_ids_B, self.counted_BS.any(dim=1), weights_B)

    def broadcast(self, scores_B: Tensor) -> Tensor:
        """Give each counted token its sample's score; float64 ``[B, S]``."""
        return keep(scores_B.double()[:, None].expand(self.mask_BS.shape), self.counted_BS)


AdvantageEstimate = tuple[Tensor, Tensor]
"""``(advantages_BS, returns_BS)``, float32, 0 outside the mask."""


def gae(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16; arXiv 1506.02438).

    ``delta_t = r_t + gamma * V_{t+1} - V_t``, ``A_t = delta_t + gamma * lam * A_{t+1}``, return ``A_t + V_t``, for t in
    [1, T] over the response tokens of one sample with ``V_{T+1} = A_{T+1} = 0``. We depart in whitening A over the
    batch where ``whiten`` is set; returns are never whitened.
    """
    counted = inputs.counted_BS
    values = keep(inputs.values_BS, counted).double()
    # Each cell sees the value of the nearest counted token at or after it; one cell further that is V_{t+1}.
    upcoming = reverse_scan((~counted).double(), values)
    delta = keep(inputs.rewards_BS + inputs.gamma * to_predicting_position(upcoming) - values, counted)
    advantages = keep(reverse_scan(_decay(counted, inputs.gamma * inputs.lam), delta), counted)
    returns = advantages + values
    return _finish(masked_whiten(advantages, counted) if inputs.whiten else advantages, returns)


def grpo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Group-relative advantage (Shao et al. 2024, sec. 4.1.2; arXiv 2402.03300).

    ``A_t = (R - m) / (std + 1e-6)``, std with Bessel's correction. ``divide_by_std=False`` is :func:`dr_grpo`.
    """
    stats = inputs.group_stats()
    advantage = _centred(inputs, stats)
    return _finish(
        inputs.broadcast(advantage / (stats.std_B + GRPO_STD_EPS) if inputs.divide_by_std else advantage), inputs.returns_BS
    )


def dr_grpo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Group-relative advantage without the std bias (Liu et al. 2025, sec. 3.2; arXiv 2503.20783): ``A_t = R - m``."""
    return _finish(inputs.broadcast(_centred(inputs, inputs.group_stats())), inputs.returns_BS)


def rloo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Leave-one-out baseline (Ahmadian et al. 2024, eq. 8; arXiv 2402.14740).

    ``A_t = R_i - mean_{j != i} R_j = n / (n - 1) * (R_i - m)`` for n samples in the group. The second form has no
    cancellation between large sums.
    """
    stats = inputs.group_stats()
    leave_one_out = stats.count_B / (stats.count_B - 1).clamp(min=1)
    return _finish(inputs.broadcast(_centred(inputs, stats) * leave_one_out), inputs.returns_BS)


def opo(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Length-weighted optimal baseline (Hao et al. 2025, eq. 6; arXiv 2505.23585).

    ``A_t = R - b`` with ``b = sum_i l_i R_i / sum_i l_i`` over the group, l the response tokens of a sample.
    """
    stats = inputs.group_stats(weights_B=inputs.counted_BS.sum(dim=1))
    return _finish(inputs.broadcast(_centred(inputs, stats)), inputs.returns_BS)


def gpg(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Group policy gradient (Chu et al. 2025, eq. 7; arXiv 2504.02546).

    ``A_t = alpha * (R - m)``, alpha = valid samples / valid samples in groups that tell something: the batch's
    gradient keeps its size when groups with equal rewards drop out.
    """
    stats = inputs.group_stats()
    alpha = inputs.counted_BS.any(dim=1).sum() / stats.informative_B.sum().clamp(min=1)
    return _finish(inputs.broadcast(_centred(inputs, stats) * alpha), inputs.returns_BS)


def reinforce_plus_plus(inputs: AdvantageInputs) -> AdvantageEstimate:
    """Discounted returns whitened over the batch (Hu 2025, sec. 3; arXiv 2501.03262): ``A_t = whiten(G_t)``."""
    returns = inputs.returns_BS
    return _finish(masked_whiten(returns, inputs.counted_BS), returns)


def reinforce_plus_plus_baseline(inputs: AdvantageInputs) -> AdvantageEstimate:
    """REINFORCE++ with the group mean as baseline (Hu 2025, sec. 3.2): ``A_t = whiten(R - m)`` over response tokens.

    We depart in one point: whitening would move a group that tells nothing away from 0, so those are put back to 0.
    """
    stats = inputs.group_stats()
    whitened = masked_whiten(inputs.broadcast(_centred(inputs, stats)), inputs.counted_BS)
    return _finish(keep(whitened, stats.informative_B[:, None]), inputs.returns_BS)


ADVANTAGE_ESTIMATORS: dict[str, Callable[[AdvantageInputs], AdvantageEstimate]] = {
    "gae": gae,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "opo": opo,
    "gpg": gpg,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}
"""Names of ``algorithm.adv_estimator``."""


def _decay(counted_BS: Tensor, factor: float) -> Tensor:
    """``factor`` on counted tokens, 1 on the others: those hand the recurrence through."""
    ones_BS = torch.ones(counted_BS.shape, dtype=torch.float64, device=counted_BS.device)
    return ones_BS.masked_fill(counted_BS, factor)


def _centred(inputs: AdvantageInputs, stats: GroupStats) -> Tensor:
    """``R - baseline`` ``[B]``, exactly 0 in groups that tell nothing."""
    return keep(inputs.rewards_BS.sum(dim=1) - stats.mean_B, stats.informative_B)


def _finish(advantages_BS: Tensor, returns_BS: Tensor) -> AdvantageEstimate:
    return advantages_BS.float(), returns_BS.float()
