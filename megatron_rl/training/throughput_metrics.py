"""Throughput of a step, from its token counts and its own timers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.flops import train_flops
from megatron_rl.observability.throughput import mfu, throughput, tokens_per_second
from megatron_rl.training.step_sampler import SampledTokens
from megatron_rl.types.metrics import Metric, Metrics


@dataclass(frozen=True)
class ThroughputMeter:
    """Knows the model, the number of ranks and what each could do."""

    model: ModelConfig
    world_size: int
    peak_flops_per_s: float | None
    """Of one device; None where unknown, and then no utilisation is reported."""

    def metrics(self, sampled: SampledTokens, trained_lengths: Sequence[int], timings: Metrics) -> Metrics:
        """Speed of the step, of generation and of the actor's update; padding never counts.

        Args:
            sampled: all that was sampled.
            trained_lengths: tokens of each sample of the update.
            timings: ``timing_s/`` of the step.
        """
        tokens = sampled.prompt + sampled.response
        step_s = timings["timing_s/step"].value
        gen_s = timings["timing_s/gen"].value
        found = {
            "perf/total_num_tokens": Metric(float(tokens), "sum"),
            "perf/time_per_step": Metric(step_s),
            "perf/tokens_per_second": Metric(tokens_per_second(tokens, step_s)),
            "perf/throughput": Metric(throughput(tokens, step_s, self.world_size)),
            "perf/actor_generate_tokens_per_second": Metric(tokens_per_second(sampled.response, gen_s)),
        }
        if self.peak_flops_per_s is not None and "timing_s/update_actor" in timings:
            flops = train_flops(self.model, trained_lengths)
            update_s = timings["timing_s/update_actor"].value
            found["perf/mfu_actor"] = Metric(mfu(flops, update_s, self.world_size, self.peak_flops_per_s))
        return found
