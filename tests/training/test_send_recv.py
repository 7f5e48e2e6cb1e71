"""Traffic between two pipeline stages, counted on two gloo ranks."""

from __future__ import annotations

import time

from megatron_rl.config.training import TrainedRoleConfig
from megatron_rl.parallel.groups import GroupRegistry
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.send_recv import PIPELINE_METER, SendRecvMeter
from tests.support.distributed import run_distributed
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import PolicyLossForTest


def test_meter_adds_up_and_starts_over() -> None:
    meter = SendRecvMeter()
    with meter.waiting():
        time.sleep(0.01)
    assert meter.flush()[1] >= 0.01
    assert meter.flush() == (0, 0.0)


def _traffic() -> dict[str, tuple[int, float]]:
    model = tiny_model(num_layers=2)
    role = MegatronRole.build(
        model, TrainedRoleConfig(), ParallelLayout(pipeline=2), GroupRegistry(), Platform.detect(), total_optimizer_steps=2
    )
    batch = ragged_batch(garbage=False)
    PIPELINE_METER.flush()
    role.score(batch)
    scoring = PIPELINE_METER.flush()
    role.update(batch, PolicyLossForTest())
    return {"scoring": scoring, "update": PIPELINE_METER.flush()}


def test_pipeline_traffic_matches_hand_computed() -> None:
    batch, hidden = ragged_batch(), tiny_model().hidden_size
    activations = int(batch.lengths_B.sum()) * hidden * 4
    for traffic in run_distributed(2, _traffic):
        assert traffic["scoring"][0] == activations
        assert traffic["update"][0] == 2 * activations, "activations one way, their gradients the other"
        assert min(seconds for _, seconds in traffic.values()) > 0
