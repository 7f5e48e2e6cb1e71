"""Learning-rate schedule, refusal of broken gradients, and which Adam is found."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from megatron_rl.config.training import OptimConfig, TrainedRoleConfig
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.training.optimizer import adam_implementation
from megatron_rl.types.batches import LossInputs
from tests.support.distributed import run_distributed
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import PolicyLossForTest

_SCHEDULES = {
    "constant": (OptimConfig(lr=1.0), [1.0, 1.0, 1.0, 1.0, 1.0]),
    "warmup": (OptimConfig(lr=1.0, lr_warmup_steps=2), [0.5, 1.0, 1.0, 1.0, 1.0]),
    "linear": (OptimConfig(lr=1.0, min_lr=0.2, lr_decay_style="linear", lr_decay_steps=4), [0.8, 0.6, 0.4, 0.2, 0.2]),
    "cosine": (
        OptimConfig(lr=1.0, lr_warmup_steps=1, lr_decay_style="cosine"),
        [1.0, *(0.5 * (1 + math.cos(math.pi * i / 4)) for i in (1, 2, 3, 4))],
    ),
    "warmup_longer_than_the_run": (OptimConfig(lr=1.0, lr_warmup_steps=10), [0.1, 0.2, 0.3, 0.4, 0.5]),
    "frozen": (OptimConfig(lr=0.0), [0.0] * 5),
}


class NotFinite(PolicyLossForTest):
    """A loss whose gradient is NaN."""

    def __call__(self, outputs_N: Tensor, entropy_N: Tensor | None, inputs: LossInputs):  # type: ignore[no-untyped-def]
        loss, metrics = super().__call__(outputs_N, entropy_N, inputs)
        return loss * torch.tensor(float("nan")), metrics


def _role(optim: OptimConfig, layout: ParallelLayout = ParallelLayout()):  # type: ignore[no-untyped-def]
    from megatron_rl.parallel.groups import GroupRegistry
    from megatron_rl.runtime.platform import Platform
    from megatron_rl.training.megatron_role import MegatronRole

    model = tiny_model(num_layers=2)
    config = TrainedRoleConfig(optim=optim)
    return MegatronRole.build(model, config, layout, GroupRegistry(), Platform.detect(), total_optimizer_steps=5)


def _rates(schedules: dict[str, OptimConfig]) -> dict[str, list[float]]:
    batch, loss = ragged_batch(), PolicyLossForTest()
    rates = {}
    for name, optim in schedules.items():
        role = _role(optim)
        rates[name] = [role.update(batch, loss)["lr"].value for _ in range(5)]
    return rates


def test_schedule_matches_hand_computed() -> None:
    (rates,) = run_distributed(1, _rates, {name: optim for name, (optim, _) in _SCHEDULES.items()})
    for name, (_, expected) in _SCHEDULES.items():
        assert rates[name] == pytest.approx(expected, abs=1e-12), name


def _skipped() -> tuple[dict[str, float], bool, float]:
    role = _role(OptimConfig(lr=0.1), ParallelLayout(data=2))
    before = {name: p.detach().clone() for name, p in role.parameters.items()}
    metrics = {name: metric.value for name, metric in role.update(ragged_batch(), NotFinite()).items()}
    untouched = all(torch.equal(before[name], p) for name, p in role.parameters.items())
    next_norm = role.update(ragged_batch(), PolicyLossForTest())["grad_norm"].value
    return metrics, untouched, next_norm


def test_step_rejects_gradients_that_are_not_finite() -> None:
    for metrics, untouched, next_norm in run_distributed(2, _skipped):
        assert metrics["update_skipped"] == 1.0
        assert np.isnan(metrics["grad_norm"])
        assert untouched
        assert np.isfinite(next_norm)


def _clip(clip_grad: float) -> tuple[float, float]:
    role = _role(OptimConfig(lr=0.1, clip_grad=clip_grad))
    norm = role.update(ragged_batch(), PolicyLossForTest())["grad_norm"].value
    moments = [state["exp_avg"] for state in role.optimizer.megatron.optimizer.state.values()]
    return norm, float(torch.cat([m.flatten() for m in moments]).norm())


def _clips() -> list[tuple[float, float]]:
    return [_clip(0.0), _clip(1e-3)]


def test_step_clips_the_global_norm() -> None:
    ((free_norm, free_moment), (norm, moment)) = run_distributed(1, _clips)[0]
    assert norm == free_norm > 1e-3, "the norm before clipping is reported"
    assert free_moment == pytest.approx(0.1 * free_norm, rel=1e-4)
    assert moment == pytest.approx(0.1 * 1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("installed", "expected", "warns"),
    [
        ((), "torch", False),
        (("apex",), "torch", True),
        (("apex", "amp_C"), "apex", False),
        (("transformer_engine",), "transformer_engine", False),
    ],
    ids=["nothing", "unrelated_apex", "nvidia_apex", "transformer_engine"],
)
def test_adam_implementation_tells_the_two_apexes_apart(
    installed: tuple[str, ...],
    expected: str,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = importlib.machinery.ModuleSpec("found", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name in installed else None)
    with caplog.at_level(logging.WARNING):
        assert adam_implementation() == expected
    assert ("not NVIDIA Apex" in caplog.text) is warns
