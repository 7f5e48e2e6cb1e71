"""How far the trainer's policy is from the engine that sampled, and the weights that correct for it.

Engine and trainer hold the same weights but compute with other kernels and precisions, so their log-probs differ.
``rollout`` is the engine (behaviour policy), ``old`` the trainer before the update.

Shape suffixes: B samples, S padded tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from megatron_rl.algorithms.kl import MAX_LOG_RATIO, k3
from megatron_rl.algorithms.masked_stats import keep, masked_mean, masked_var
from megatron_rl.config.rollout import RolloutCorrectionConfig
from megatron_rl.types.metrics import Metric, Metrics


def _log_ratio(old_logprobs_BS: Tensor, rollout_logprobs_BS: Tensor, mask_BS: Tensor) -> Tensor:
    return keep(old_logprobs_BS.double(), mask_BS) - keep(rollout_logprobs_BS.double(), mask_BS)


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def token_weights(old_logprobs_BS: Tensor, rollout_logprobs_BS: Tensor, mask_BS: Tensor, threshold: float) -> Tensor:
    """Truncated importance weight of each token (Ionides 2008; Yao et al. 2025): ``min(old / rollout, threshold)``.

    Returns f32 ``[B, S]``, 0 outside the mask.
    """
    ratio = _bounded_exp(_log_ratio(old_logprobs_BS, rollout_logprobs_BS, mask_BS))
    return keep(ratio.clamp(max=threshold), mask_BS).float()


def sequence_weights(old_logprobs_BS: Tensor, rollout_logprobs_BS: Tensor, mask_BS: Tensor, threshold: float) -> Tensor:
    """Truncated importance weight of each sample, on all its tokens: ``min(prod_t old / rollout, threshold)``.

    Returns f32 ``[B, S]``, 0 outside the mask.
    """
    log_ratio = _log_ratio(old_logprobs_BS, rollout_logprobs_BS, mask_BS)
    ratio_B1 = _bounded_exp(log_ratio.sum(dim=1, keepdim=True))
    return keep(ratio_B1.clamp(max=threshold).expand(mask_BS.shape), mask_BS).float()


def importance_weights(
    old_logprobs_BS: Tensor, rollout_logprobs_BS: Tensor, mask_BS: Tensor, config: RolloutCorrectionConfig
) -> tuple[Tensor, Metrics]:
    """Weights of ``rollout.correction`` and how far the two policies are apart.

    Returns:
        ``(weights_BS, metrics)``: f32 constants, ones inside the mask for mode ``none``; ``rollout_corr/...`` numbers.

    Syncs: reads the metrics to the host.
    """
    metrics = mismatch_metrics(old_logprobs_BS, rollout_logprobs_BS, mask_BS)
    if config.mode == "none":
        return mask_BS.float(), metrics
    make_weights = {"token": token_weights, "sequence": sequence_weights}[config.mode]
    weights_BS = make_weights(old_logprobs_BS.detach(), rollout_logprobs_BS, mask_BS, config.threshold)
    return weights_BS, {**metrics, **weight_metrics(weights_BS, mask_BS, config.threshold)}


def mismatch_metrics(old_logprobs_BS: Tensor, rollout_logprobs_BS: Tensor, mask_BS: Tensor) -> Metrics:
    """Distance between engine and trainer on the sampled tokens.

    ``kl`` and ``k3_kl`` estimate KL(rollout || old). Perplexities are means over samples. ``chi2_*`` is the variance
    of the importance weight, ``E[rho^2] - 1``, per token and per sample. All are finite for an empty mask.
    """
    log_ratio = _log_ratio(old_logprobs_BS, rollout_logprobs_BS, mask_BS)
    difference = log_ratio.abs()
    rows_B = mask_BS.any(dim=1)
    old_probs, rollout_probs = (torch.exp(keep(x.double(), mask_BS)) for x in (old_logprobs_BS, rollout_logprobs_BS))
    values = {
        "logprob_diff_mean": masked_mean(difference, mask_BS),
        "logprob_diff_max": difference.max(),
        "probs_diff_max": (old_probs - rollout_probs).abs().max(),
        "probs_pearson": _pearson(old_probs, rollout_probs, mask_BS),
        "kl": masked_mean(-log_ratio, mask_BS),
        "k3_kl": masked_mean(k3(-log_ratio), mask_BS),
        "training_ppl": masked_mean(_perplexity_B(old_logprobs_BS, mask_BS), rows_B),
        "rollout_ppl": masked_mean(_perplexity_B(rollout_logprobs_BS, mask_BS), rows_B),
        "chi2_token": masked_mean(_bounded_exp(2 * log_ratio) - 1, mask_BS),
        "chi2_seq": masked_mean(_bounded_exp(2 * log_ratio.sum(dim=1)) - 1, rows_B),
        "ratio_p01": _bounded_exp(_percentile(log_ratio, mask_BS, 0.01)),
        "ratio_p99": _bounded_exp(_percentile(log_ratio, mask_BS, 0.99)),
        "ratio_max": keep(_bounded_exp(log_ratio), mask_BS).max(),
    }
    return {f"rollout_corr/{name}": Metric(float(value)) for name, value in values.items()}


def weight_metrics(weights_BS: Tensor, mask_BS: Tensor, threshold: float) -> Metrics:
    """Summary of the importance weights in use; ``ratio_fraction_high`` is the share cut at the threshold."""
    mean = masked_mean(weights_BS, mask_BS)
    second = masked_mean(weights_BS.double().square(), mask_BS)
    values = {
        "mean": mean,
        "std": masked_var(weights_BS, mask_BS).sqrt(),
        "max": keep(weights_BS, mask_BS).max(),
        "eff_sample_size": mean.square() / second.clamp(min=torch.finfo(torch.float64).tiny),
        "ratio_fraction_high": masked_mean((weights_BS >= threshold).float(), mask_BS),
    }
    return {f"rollout_corr/rollout_is_{name}": Metric(float(value)) for name, value in values.items()}


def _perplexity_B(logprobs_BS: Tensor, mask_BS: Tensor) -> Tensor:
    mean_B = keep(logprobs_BS.double(), mask_BS).sum(dim=1) / mask_BS.sum(dim=1).clamp(min=1)
    return _bounded_exp(-mean_B)


def _percentile(x: Tensor, mask: Tensor, share: float) -> Tensor:
    """Smallest counted value that at least ``share`` of the counted values do not exceed; 0 for an empty mask."""
    counted = x[mask]
    if counted.numel() == 0:
        return x.new_zeros(())
    return counted.kthvalue(max(1, math.ceil(share * counted.numel()))).values


def _pearson(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Correlation over the mask; 1 where both sides are constant, since they then cannot disagree in shape."""
    dx, dy = (keep(v - masked_mean(v, mask), mask) for v in (x, y))
    scale = (dx.square().sum() * dy.square().sum()).sqrt()
    return torch.where(scale > 0, (dx * dy).sum() / scale.clamp(min=torch.finfo(torch.float64).tiny), torch.ones_like(scale))
