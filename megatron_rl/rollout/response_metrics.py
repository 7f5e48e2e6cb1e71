"""Length statistics of a rollout batch."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_rl.types.batches import FinishReason, RolloutBatch
from megatron_rl.types.metrics import Metric, Metrics, spread


def response_metrics(rollouts: RolloutBatch) -> Metrics:
    """Prompt and response lengths, and how responses ended.

    ``response_length/clip_ratio`` is the share of responses cut by the budget without EOS: a response that ends with
    EOS exactly at the budget is complete.
    """
    count = len(rollouts.finish_reasons)

    def share(reason: FinishReason) -> Metric:
        return Metric(rollouts.finish_reasons.count(reason) / count, "mean", weight=float(count))

    return {
        **spread("response_length", rollouts.response_lengths_B),
        **spread("prompt_length", rollouts.prompt_lengths_B),
        "response_length/clip_ratio": share("length"),
        "response/aborted_ratio": share("abort"),
        "response/num_empty": Metric(float((rollouts.response_lengths_B == 0).sum()), "sum"),
        "rollout/generated_tokens": Metric(float(rollouts.response_lengths_B.sum()), "sum"),
    }


def imbalance_metrics(rollouts: RolloutBatch, shares: Sequence[Sequence[int]], samples_per_prompt: int) -> Metrics:
    """How unevenly the engines were loaded.

    ``rollout/engine_imbalance`` is the most generated tokens of one engine over the mean of all engines; 1 = even.
    ``shares[e]`` are the prompts engine ``e`` answered.
    """
    lengths_PN = rollouts.response_lengths_B.reshape(-1, samples_per_prompt)
    loads = [float(lengths_PN[list(share)].sum()) for share in shares]
    mean = sum(loads) / len(loads)
    return {"rollout/engine_imbalance": Metric(max(loads) / mean if mean else 1.0, "max")}
