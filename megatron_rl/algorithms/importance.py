"""How far the trainer's policy is from the engine that sampled, and the weights that correct for it.

Engine and trainer hold the same weights but compute with other kernels and precisions, so their log-probs differ.
``rollout`` is the engine (behaviour policy), ``old`` the trainer before the update.

Shape suffixes: B samples, S padded tokens, T counted tokens of all samples end to end.
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
    old_T, rollout_T = (x[mask_BS].double() for x in (old_logprobs_BS, rollout_logprobs_BS))
    log_ratio_T = old_T - rollout_T
    counts_B = mask_BS.sum(dim=1)
    rows_B = counts_B > 0
    old_probs_T, rollout_probs_T = old_T.exp(), rollout_T.exp()
    log_ratio_B = _row_sums(log_ratio_T, counts_B)
    values = {
        "logprob_diff_mean": _mean(log_ratio_T.abs()),
        "logprob_diff_max": _largest(log_ratio_T.abs()),
        "probs_diff_max": _largest((old_probs_T - rollout_probs_T).abs()),
        "probs_pearson": _pearson(old_probs_T, rollout_probs_T),
        "kl": _mean(-log_ratio_T),
        "k3_kl": _mean(k3(-log_ratio_T)),
        "training_ppl": masked_mean(_perplexity_B(old_T, counts_B), rows_B),
        "rollout_ppl": masked_mean(_perplexity_B(rollout_T, counts_B), rows_B),
        "chi2_token": _mean(_bounded_exp(2 * log_ratio_T) - 1),
        "chi2_seq": masked_mean(_bounded_exp(2 * log_ratio_B) - 1, rows_B),
        "ratio_p01": _bounded_exp(_percentile(log_ratio_T, 0.01)),
        "ratio_p99": _bounded_exp(_percentile(log_ratio_T, 0.99)),
        "ratio_max": _largest(_bounded_exp(log_ratio_T)),
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


def _mean(x_T: Tensor) -> Tensor:
    """0 without any token."""
    return x_T.sum() / max(1, x_T.numel())


def _largest(x_T: Tensor) -> Tensor:
    """Of numbers that are not negative; 0 without any token."""
    return x_T.max() if x_T.numel() else x_T.new_zeros(())


def _row_sums(x_T: Tensor, counts_B: Tensor) -> Tensor:
    """Sum of each sample's tokens, which lie end to end."""
    rows_T = torch.repeat_interleave(torch.arange(len(counts_B), device=x_T.device), counts_B, output_size=x_T.numel())
    return x_T.new_zeros(len(counts_B)).index_add(0, rows_T, x_T)


def _perplexity_B(logprobs_T: Tensor, counts_B: Tensor) -> Tensor:
    return _bounded_exp(-_row_sums(logprobs_T, counts_B) / counts_B.clamp(min=1))


def _percentile(x_T: Tensor, share: float) -> Tensor:
    """Smallest value that at least ``share`` of the values do not exceed; 0 without any."""
    if x_T.numel() == 0:
        return x_T.new_zeros(())
    return x_T.kthvalue(max(1, math.ceil(share * x_T.numel()))).values


def _pearson(x_T: Tensor, y_T: Tensor) -> Tensor:
    """Correlation; 1 where both sides are constant, since they then cannot disagree in shape."""
    dx, dy = (v - _mean(v) for v in (x_T, y_T))
    scale = (dx.square().sum() * dy.square().sum()).sqrt()
    return torch.where(scale > 0, (dx * dy).sum() / scale.clamp(min=torch.finfo(torch.float64).tiny), torch.ones_like(scale))
