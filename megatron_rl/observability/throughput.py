"""Speed of a step, from token counts, seconds and FLOPs (``estimator.flops``). Pure arithmetic; padding never counts."""

from __future__ import annotations


def tokens_per_second(num_tokens: int, seconds: float) -> float:
    """Tokens of the whole job per second (``perf/tokens_per_second``)."""
    return num_tokens / seconds


def throughput(num_tokens: int, seconds: float, num_devices: int) -> float:
    """Tokens per second and device (``perf/throughput``)."""
    return num_tokens / (seconds * num_devices)


def mfu(flops: float, seconds: float, num_devices: int, peak_flops_per_s: float) -> float:
    """Model FLOPs utilisation: useful FLOP/s over the peak of all devices. Above 1 something was measured wrong."""
    return flops / (seconds * num_devices * peak_flops_per_s)
