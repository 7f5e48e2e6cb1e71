"""How far the trainer's log-probs are from the engine's for the same sampled tokens.

Both score the same weights, so any difference is kernels, precision, or a fault: a skipped sync, a stale cache, another
temperature. Left unseen it makes every update off-policy.

Shape suffixes: B samples, S padded tokens, T response tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megatron_rl.types.metrics import Metric, Metrics

_RATIO_PERCENTILES = (0.01, 0.5, 0.99)
_LARGEST_QUANTILE_INPUT = 2**24
"""``torch.quantile`` refuses more elements."""


def _pearson(x_T: Tensor, y_T: Tensor) -> float:
    """Correlation; 1 where both are the same constant, 0 where only one varies or the constants differ."""
    dx_T, dy_T = x_T - x_T.mean(), y_T - y_T.mean()
    scale = float(dx_T.norm() * dy_T.norm())
    if scale == 0.0:
        return float(torch.equal(x_T, y_T))
    return float((dx_T * dy_T).sum()) / scale


def mismatch_metrics(trainer_logprobs_BS: Tensor, rollout_logprobs_BS: Tensor, mask_BS: Tensor) -> Metrics:
    """Differences over the masked-in tokens, which were drawn by the engine.

    With ``d = trainer - rollout`` (log-ratio of the trainer's policy to the behaviour policy), and tokens drawn from the
    latter, ``E[-d]`` (k1) and ``E[exp(d) - 1 - d]`` (k3; Schulman, "Approximating KL Divergence", 2020) both estimate
    ``KL(rollout || trainer)``; k3 is never negative.

    Args:
        trainer_logprobs_BS: f32, the trainer's, before the update.
        rollout_logprobs_BS: f32, the engine's.
        mask_BS: bool, tokens that count.

    Returns ``mismatch/...`` metrics in nats; no metrics for an empty mask.
    Syncs: reads the values to the host.
    """
    trainer_T = trainer_logprobs_BS[mask_BS].double()
    rollout_T = rollout_logprobs_BS[mask_BS].double()
    if trainer_T.numel() == 0:
        return {}
    d_T = trainer_T - rollout_T
    ratio_T = d_T.exp()
    weight = float(d_T.numel())
    percentiles = torch.quantile(ratio_T[:_LARGEST_QUANTILE_INPUT], ratio_T.new_tensor(_RATIO_PERCENTILES)).tolist()
    return {
        "mismatch/logprob_abs_diff_mean": Metric(float(d_T.abs().mean()), "mean", weight),
        "mismatch/logprob_abs_diff_max": Metric(float(d_T.abs().max()), "max"),
        "mismatch/kl_k1": Metric(float(-d_T.mean()), "mean", weight),
        "mismatch/kl_k3": Metric(float((ratio_T - 1 - d_T).mean()), "mean", weight),
        **{
            f"mismatch/ratio_p{100 * q:g}": Metric(value, "mean", weight)
            for q, value in zip(_RATIO_PERCENTILES, percentiles, strict=True)
        },
        "mismatch/probs_pearson": Metric(_pearson(trainer_T.exp(), rollout_T.exp()), "mean", weight),
    }


def mismatch_warning(metrics: Metrics, threshold: float) -> str | None:
    """A sentence for the log where a step's mean difference exceeds ``rollout.mismatch_warn_threshold``, else None."""
    measured = metrics.get("mismatch/logprob_abs_diff_mean")
    if measured is None or measured.value <= threshold:
        return None
    return (
        f"trainer and rollout log-probs differ by {measured.value:.4g} nats on average, more than "
        f"rollout.mismatch_warn_threshold={threshold:g}: check that every weight sync ran, that the engine samples at "
        f"rollout.temperature without top-p/top-k, and the engine's precision"
    )
