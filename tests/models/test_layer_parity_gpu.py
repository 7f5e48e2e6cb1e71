"""One GPU: both layer specs in bf16 against f32 on the CPU, and checkpoints that cross from one to the other."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from megatron_rl.runtime.platform import Platform, init_distributed
from megatron_rl.training.role_checkpoint import load_role, save_role
from tests.models.layer_parity import (
    Answer,
    Arrays,
    Variant,
    answer,
    answer_on_cpu,
    build,
    distance,
    parity_batch,
    parity_model,
    weights_of,
)
from tests.training.role_runs import RatioLoss

pytestmark = pytest.mark.gpu

needs_transformer_engine = pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is None, reason="Transformer Engine is not installed"
)
SHAPES = {"plain": (False, False), "plain_tied": (False, True), "qk_norm": (True, False), "qk_norm_tied": (True, True)}
LOCAL, ENGINE = Variant("local", "bfloat16"), Variant("transformer_engine", "bfloat16")


@pytest.fixture(scope="module", autouse=True)
def job() -> Iterator[None]:
    init_distributed(Platform.detect(), 120, {})
    yield
    dist.destroy_process_group()


@cache
def _expected(shape: str) -> tuple[Arrays, Answer]:
    """Weights that bf16 holds exactly, and what f32 on the CPU makes of them."""
    qk_norm, tied = SHAPES[shape]
    model = parity_model(qk_norm=qk_norm, tied=tied)
    weights = weights_of(build(model, LOCAL))
    return weights, answer_on_cpu(model, weights)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("variant", "logprob_mean", "gradient"),
    [
        pytest.param(Variant("local", "float32"), 1e-5, 1e-4, id="local_f32"),
        pytest.param(LOCAL, 0.01, 0.05, id="local_bf16"),
        pytest.param(Variant("transformer_engine", "float32"), 1e-3, 1e-2, id="te_f32", marks=needs_transformer_engine),
        pytest.param(ENGINE, 0.01, 0.05, id="te_bf16", marks=needs_transformer_engine),
    ],
)
def test_update_matches_reference_on_cpu(variant: Variant, logprob_mean: float, gradient: float, shape: str) -> None:
    qk_norm, tied = SHAPES[shape]
    weights, expected = _expected(shape)
    apart = distance(answer(parity_model(qk_norm=qk_norm, tied=tied), variant, weights), expected)
    assert apart.logprob_mean < logprob_mean
    assert apart.worst_gradient[0] < gradient, apart.worst_gradient[1]


@needs_transformer_engine
@pytest.mark.parametrize("shape", ["plain", "qk_norm_tied"])
@pytest.mark.parametrize(("saved", "loaded"), [(ENGINE, LOCAL), (LOCAL, ENGINE)], ids=["te_to_local", "local_to_te"])
def test_checkpoint_roundtrips_between_specs(saved: Variant, loaded: Variant, shape: str, tmp_path: Path) -> None:
    """Weights and optimizer state: both take the same next step, up to rounding of its gradient."""
    qk_norm, tied = SHAPES[shape]
    model, batch = parity_model(qk_norm=qk_norm, tied=tied), parity_batch()
    source, target = build(model, saved), build(model, loaded)
    source.update(batch, RatioLoss())
    save_role(source, tmp_path)
    load_role(target, tmp_path, with_optimizer=True)
    at_save = weights_of(source)
    for name, weight in weights_of(target).items():
        assert np.array_equal(weight, at_save[name]), name
    for role in (source, target):
        role.update(batch, RatioLoss())
    after = weights_of(source)
    for name, weight in weights_of(target).items():
        if name.endswith("norm.weight"):
            continue  # Near one a bf16 number is as coarse as the step.
        step, difference = after[name] - at_save[name], weight - after[name]
        assert np.linalg.norm(difference) < 0.2 * np.linalg.norm(step), name
