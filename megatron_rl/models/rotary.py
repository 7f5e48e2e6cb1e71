"""Rotary position angles, plain and with Llama-3 frequency scaling (Su et al. 2021).

Shape suffixes: T packed tokens, K head dim, R = K / 2 rotated half.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from megatron_rl.config.model import ModelConfig, RopeScalingConfig


def _stretch(frequencies: Tensor, scaling: RopeScalingConfig) -> Tensor:
    """Llama-3 rule: long waves are stretched by ``factor``, short ones kept, those between blended linearly."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each pair of channels, f32 ``[R]``: ``theta^(-2i/K)``, scaled if configured."""
    exponents = torch.arange(0, config.kv_channels, 2, dtype=torch.float32, device="cpu") / config.kv_channels
    frequencies = 1.0 / config.rope_theta**exponents
    return frequencies if config.rope_scaling is None else _stretch(frequencies, config.rope_scaling)


def packed_rotation(frequencies: Tensor, bounds: Tensor, num_tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of packed tokens; positions start at 0 in each document.

    Args:
        frequencies: f32 ``[R]``.
        bounds: i32 ``[D + 1]``, document bounds; the last is ``num_tokens``.
        num_tokens: T.
        dtype: the values are rounded to it, as the rollout engine and the models' own code round them.

    Returns f32 ``[T, R]`` twice.
    """
    starts_T = torch.repeat_interleave(bounds[:-1], bounds[1:] - bounds[:-1], output_size=num_tokens)
    positions_T = torch.arange(num_tokens, device=bounds.device) - starts_T
    angles_TR = torch.outer(positions_T.float(), frequencies)
    return angles_TR.cos().to(dtype).float(), angles_TR.sin().to(dtype).float()
