"""One GPU: Transformer Engine's precision-aware Adam against the plain one, and checkpoints between the two."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megatron_rl.config.training import OptimConfig, TrainedRoleConfig
from megatron_rl.parallel.groups import GroupRegistry
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform, init_distributed
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.role_checkpoint import load_role, save_role
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import PolicyLossForTest

pytestmark = pytest.mark.gpu
pytest.importorskip("transformer_engine")

PLAIN: dict[str, object] = {}
AWARE: dict[str, object] = {"use_precision_aware_optimizer": True}
HALF_MOMENTS = {**AWARE, "exp_avg_dtype": "bfloat16", "exp_avg_sq_dtype": "bfloat16"}
HALF_GRADIENTS = {**HALF_MOMENTS, "main_grads_dtype": "bfloat16"}


BF16_STEP = 2**-7
"""Largest distance between neighbouring bfloat16 numbers, relative to them: what gradients of bfloat16 layers resolve, so that
biases, which start at zero and are nothing but sums of gradients, agree no better (measured on one H200: 0.0032)."""


@pytest.fixture(scope="module", autouse=True)
def job() -> Iterator[None]:
    init_distributed(Platform.detect(), 120, {})
    yield
    dist.destroy_process_group()


def _role(optim: dict[str, object], **shape: int) -> MegatronRole:
    # A large epsilon: Adam otherwise turns rounding noise in tiny gradients into full-size steps.
    settings = OptimConfig.model_validate({"lr": 0.01, "eps": 0.1, "betas": (0.9, 0.99), **optim})
    config = TrainedRoleConfig(optim=settings, ppo_max_token_len_per_gpu=64)
    model = tiny_model(tied=False).model_copy(update={"hidden_size": 256, "intermediate_size": 512, **shape})
    layout, registry = ParallelLayout(), GroupRegistry()
    return MegatronRole.build(model, config, layout, registry, Platform.detect(), total_optimizer_steps=10, seed=3)


def _train(role: MegatronRole, steps: int) -> None:
    for _ in range(steps):
        role.update(ragged_batch(), PolicyLossForTest())


def _weights(role: MegatronRole) -> dict[str, Tensor]:
    return {name: parameter.detach().float().clone() for name, parameter in role.parameters.items()}


def _assert_close(actual: MegatronRole, expected: MegatronRole, tolerance: float) -> None:
    for name, weight in _weights(expected).items():
        difference = (_weights(actual)[name] - weight).norm() / (weight.norm() + 1e-6)
        assert difference <= tolerance, f"{name}: {difference}"


@pytest.mark.parametrize(
    ("optim", "tolerance"),
    [(AWARE, BF16_STEP), (HALF_MOMENTS, 1e-2), (HALF_GRADIENTS, 1e-2)],
    ids=["f32", "bf16_moments", "bf16_moments_and_gradients"],
)
def test_precision_aware_steps_match_plain_ones(optim: dict[str, object], tolerance: float) -> None:
    plain, aware = _role(PLAIN), _role(optim)
    _train(plain, 3)
    _train(aware, 3)
    _assert_close(aware, plain, tolerance)


@pytest.mark.parametrize(
    ("optim", "expected"),
    [(PLAIN, 18), (AWARE, 16), (HALF_MOMENTS, 12), (HALF_GRADIENTS, 10)],
    ids=["plain", "f32", "bf16_moments", "bf16_moments_and_gradients"],
)
def test_bytes_held_per_parameter_match_the_documentation(optim: dict[str, object], expected: int) -> None:
    _train(_role(optim), 1)  # Libraries keep workspaces from their first use on.
    gc.collect()
    before = torch.cuda.memory_allocated()
    role = _role(optim, vocab_size=200_000)
    _train(role, 2)
    gc.collect()
    held = torch.cuda.memory_allocated() - before
    assert held / sum(parameter.numel() for parameter in role.parameters.values()) == pytest.approx(expected, abs=0.3)


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [(AWARE, AWARE), (HALF_MOMENTS, HALF_MOMENTS), (PLAIN, AWARE), (AWARE, PLAIN)],
    ids=["f32", "bf16_moments", "plain_to_aware", "aware_to_plain"],
)
def test_checkpoint_roundtrips(saved: dict[str, object], loaded: dict[str, object], tmp_path: Path) -> None:
    first, second = _role(saved), _role(loaded)
    _train(first, 2)
    save_role(first, tmp_path)
    load_role(second, tmp_path, with_optimizer=True)
    _assert_close(second, first, 0.0 if saved == loaded else 1e-4)
    for role in (first, second):
        _train(role, 1)
    _assert_close(second, first, 0.0 if saved == loaded else BF16_STEP)


def test_checkpoint_of_an_untrained_role_loads(tmp_path: Path) -> None:
    first, second = _role(AWARE), _role(PLAIN)
    save_role(first, tmp_path)
    load_role(second, tmp_path, with_optimizer=True)
    _assert_close(second, first, 0.0)


def test_weights_changed_resets_the_master_weights() -> None:
    role = _role({**AWARE, "lr": 0.0, "weight_decay": 0.0})
    _train(role, 1)
    with torch.no_grad():
        for parameter in role.parameters.values():
            parameter.mul_(0.5)
    role.weights_changed()
    halved = _weights(role)
    _train(role, 1)
    for name, weight in _weights(role).items():
        assert torch.equal(weight, halved[name]), name
