"""Memory that leaves and comes back: storages, gradient buffers, optimizer state, on the device the tests run on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist

from megatron_rl.config.training import OptimConfig, TrainedRoleConfig
from megatron_rl.parallel.groups import GroupRegistry
from megatron_rl.parallel.layout import ParallelLayout
from megatron_rl.runtime.platform import Platform, init_distributed
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.offload import FreedGradients, HostSwap, optimizer_tensors, parameter_tensors
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import PolicyLossForTest


def test_host_swap_roundtrips_views_and_shared_storage() -> None:
    base = torch.arange(12, dtype=torch.float32)
    view, other = base[4:8], torch.tensor([7, 8], dtype=torch.int64)
    swap = HostSwap(lambda: [view, base, other])
    swap.offload()
    assert base.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
    swap.load()
    assert view.tolist() == [4.0, 5.0, 6.0, 7.0]
    assert base.tolist() == list(range(12)) and other.tolist() == [7, 8]
    view.fill_(-1.0)
    assert base[5] == -1.0


def test_host_swap_follows_tensors_that_appear_later() -> None:
    tensors = [torch.ones(3)]
    swap = HostSwap(lambda: tensors)
    swap.offload()
    swap.load()
    tensors.append(torch.full((1000,), 2.0))
    swap.offload()
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
    swap.load()
    assert float(tensors[1].sum()) == 2000.0


def test_host_swap_leaves_memory_that_others_view() -> None:
    tensor = torch.arange(4)
    view = tensor.numpy()
    swap = HostSwap(lambda: [tensor])
    swap.offload()
    assert view.tolist() == [0, 1, 2, 3]
    swap.load()


@pytest.fixture(scope="module")
def job() -> Iterator[None]:
    init_distributed(Platform.detect(), 60, {})
    yield
    dist.destroy_process_group()


def _role(*, distributed: bool, dtype: str = "float32") -> MegatronRole:
    config = TrainedRoleConfig(optim=OptimConfig(lr=1e-2, use_distributed_optimizer=distributed), ppo_max_token_len_per_gpu=64)
    platform = Platform.detect(dtype=dtype)  # type: ignore[arg-type]
    model = tiny_model(num_layers=2)
    return MegatronRole.build(model, config, ParallelLayout(), GroupRegistry(), platform, total_optimizer_steps=10, seed=3)


def _train(role: MegatronRole, movables: list[HostSwap | FreedGradients], steps: int = 3) -> dict[str, torch.Tensor]:
    """Steps between which everything leaves, as between two rollouts."""
    for step in range(steps):
        for movable in movables:
            movable.offload()
        for movable in movables:
            movable.load()
        role.update(ragged_batch(seed=step), PolicyLossForTest())
    return {name: parameter.detach().clone() for name, parameter in role.parameters.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("distributed", [True, False], ids=["distributed", "plain"])
@pytest.mark.usefixtures("job")
def test_training_is_the_same_whether_state_leaves_or_not(distributed: bool, dtype: str) -> None:
    staying, moving = _role(distributed=distributed, dtype=dtype), _role(distributed=distributed, dtype=dtype)
    assert moving.optimizer is not None
    movables = [FreedGradients(moving.optimizer), HostSwap(partial(optimizer_tensors, moving))]
    addresses = {name: parameter.data_ptr() for name, parameter in moving.parameters.items()}
    expected, actual = _train(staying, []), _train(moving, movables)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    # An engine reads the weights in place: they never move.
    assert {name: parameter.data_ptr() for name, parameter in moving.parameters.items()} == addresses


@pytest.mark.usefixtures("job")
def test_state_away_leaves_only_the_weights() -> None:
    role = _role(distributed=True, dtype="bfloat16")
    role.update(ragged_batch(), PolicyLossForTest())
    assert role.optimizer is not None
    num_elements = sum(parameter.numel() for parameter in role.parameters.values())
    state = list(optimizer_tensors(role))
    # An f32 master copy and two moments; the step counters are scalars.
    assert 3 * num_elements <= sum(tensor.numel() for tensor in state if tensor.dtype == torch.float32) < 3.1 * num_elements
    gradients, swap = FreedGradients(role.optimizer), HostSwap(lambda: state)
    gradients.offload()
    swap.offload()
    buffers = [buffer for chunk in role.optimizer.chunks for buffer in chunk.buffers]
    assert [buffer.grad_data.untyped_storage().nbytes() for buffer in buffers] == [0] * len(buffers)
    assert {tensor.untyped_storage().nbytes() for tensor in state} == {0}
    role.score(ragged_batch())
    gradients.load()
    swap.load()
    assert all(bool((parameter.main_grad == 0).all()) for parameter in role.parameters.values())


@pytest.mark.usefixtures("job")
def test_parameters_of_a_role_roundtrip() -> None:
    role = _role(distributed=True)
    before = role.score(ragged_batch())[0]
    swap = HostSwap(partial(parameter_tensors, role))
    swap.offload()
    assert all(parameter.untyped_storage().nbytes() == 0 for parameter in role.parameters.values())
    swap.load()
    assert torch.equal(role.score(ragged_batch())[0], before)
