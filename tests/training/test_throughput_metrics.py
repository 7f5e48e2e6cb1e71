"""Speeds of a step that sampled more than it trained on."""

from __future__ import annotations

from megatron_rl.config.loading import compose
from megatron_rl.estimator.flops import train_flops
from megatron_rl.training.step_sampler import SampledTokens
from megatron_rl.training.throughput_metrics import ThroughputMeter
from megatron_rl.types.metrics import Metric, to_floats


def test_throughput_counts_all_samples_and_utilisation_the_trained_ones() -> None:
    model = compose(["model=tiny"]).model
    timings = {f"timing_s/{name}": Metric(s) for name, s in (("step", 10.0), ("gen", 4.0), ("update_actor", 2.0))}
    meter = ThroughputMeter(model, world_size=2, peak_flops_per_s=1e9)
    found = to_floats(meter.metrics(SampledTokens(prompt=100, response=500), [7, 9], timings))
    assert found["perf/total_num_tokens"] == 600
    assert found["perf/tokens_per_second"] == 60
    assert found["perf/throughput"] == 30
    assert found["perf/actor_generate_tokens_per_second"] == 125
    assert found["perf/mfu_actor"] == train_flops(model, [7, 9]) / (2.0 * 2 * 1e9)
