"""One GPU: the bf16 kernels (variable-length attention, fused norm and LM head) against f32 on the same weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.training import OptimConfig, TrainedRoleConfig
from megatron_rl.parallel.groups import GroupRegistry
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform, init_distributed
from megatron_rl.training.megatron_role import MegatronRole
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import PolicyLossForTest, ValueLossForTest, fill_value_head

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def job() -> Iterator[None]:
    init_distributed(Platform.detect(), 120, {})
    yield
    dist.destroy_process_group()


def _wide_model() -> ModelConfig:
    return tiny_model(tied=False).model_copy(update={"hidden_size": 256, "intermediate_size": 512})


def _role(dtype: str, head: str) -> MegatronRole:
    config = TrainedRoleConfig(optim=OptimConfig(lr=1e-3), ppo_max_token_len_per_gpu=64)
    platform = Platform.detect(dtype=dtype)  # type: ignore[arg-type]
    role = MegatronRole.build(
        _wide_model(), config, ParallelLayout(), GroupRegistry(), platform, head=head, total_optimizer_steps=10, seed=3
    )  # type: ignore[arg-type]
    fill_value_head(role)
    return role


@pytest.mark.parametrize("head", ["lm", "value"], ids=["actor", "critic"])
@pytest.mark.usefixtures("job")
def test_bf16_update_matches_reference_f32(head: str) -> None:
    exact, half = _role("float32", head), _role("bfloat16", head)
    batch = ragged_batch()
    if head == "lm":
        expected, actual = exact.score(batch)[0], half.score(batch)[0]
    else:
        expected, actual = exact.values(batch), half.values(batch)
    assert (expected - actual).abs().max() < 0.05 * expected.abs().max()
    loss = PolicyLossForTest() if head == "lm" else ValueLossForTest()
    norms = [role.update(batch, loss)["grad_norm"].value for role in (exact, half)]
    assert norms[1] == pytest.approx(norms[0], rel=0.05)
    for name, parameter in exact.parameters.items():
        pair = (parameter.main_grad.flatten(), half.parameters[name].main_grad.flatten())
        assert torch.nn.functional.cosine_similarity(*pair, dim=0) > 0.98, name
