"""Real transfers between gloo ranks: every value lands where vLLM's layout wants it, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.executor import ReshardExecutor
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.verify import allocate_buffers, fragment_view, scatter_logical, verify_transfer
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors
from tests.resharding.shapes import plan_sync, tiny_model
from tests.support.distributed import run_distributed

PAIRS = {
    "tp1_to_tp1": (ParallelLayout(), RolloutLayout()),
    "tp2_to_tp2": (ParallelLayout(tensor=2), RolloutLayout(tensor=2)),
    "tp2_to_tp1dp2": (ParallelLayout(tensor=2), RolloutLayout(data=2)),
    "tp1dp2_to_tp2": (ParallelLayout(data=2), RolloutLayout(tensor=2)),
    "pp2_to_tp2": (ParallelLayout(pipeline=2), RolloutLayout(tensor=2)),
    "pp2_to_tp1dp2": (ParallelLayout(pipeline=2), RolloutLayout(data=2)),
    "tp2pp2_to_tp2dp2": (ParallelLayout(tensor=2, pipeline=2), RolloutLayout(tensor=2, data=2)),
    "tp2vpp2pp2_to_tp4": (ParallelLayout(tensor=2, pipeline=2, virtual_pipeline=2), RolloutLayout(tensor=4)),
    "moe_ep2_to_tp2": (ParallelLayout(data=2, expert=2, expert_tensor=1), RolloutLayout(tensor=2)),
    "moe_etp2_to_ep2": (ParallelLayout(tensor=2, expert_tensor=2), RolloutLayout(tensor=2, expert=2)),
    "apart_tp2_to_tp1dp2": (ParallelLayout(tensor=2), RolloutLayout(data=2, offset=2)),
}
PAD = -7.0


def _patterns(model, scale: float) -> dict[str, torch.Tensor]:
    """Every element of every tensor has a value of its own, exact in f32."""
    patterns, start = {}, 1
    for tensor in logical_tensors(model):
        count = torch.Size(tensor.shape).numel()
        patterns[tensor.name] = (torch.arange(start, start + count) * scale).view(tensor.shape)
        start += count
    assert start * scale < 2**24
    return patterns


def _expected(fragments, patterns, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    buffers = allocate_buffers(fragments, dtype, PAD)
    scatter_logical(fragments, patterns, buffers)
    return buffers


def _wire(device: str) -> dist.ProcessGroup | None:
    """The group a transfer runs over: gloo on CPU or where all ranks use GPU 0, NCCL on one GPU per rank."""
    if device in ("cpu", "cuda:0"):
        return dist.group.WORLD
    torch.cuda.set_device(dist.get_rank())
    return dist.new_group(backend="nccl")


def _transfer(
    pair: str, budget_bytes: int, dtypes: tuple[torch.dtype, torch.dtype], device: str = "cpu"
) -> tuple[bool, int, int, int]:
    """Two transfers with different values; (all equal, bytes received, lower bound, staging bytes) of this rank."""
    group = _wire(device)
    train, rollout = PAIRS[pair]
    family = "qwen3_moe" if pair.startswith("moe") else "qwen2"
    model, rank = tiny_model(family, tied="pp2" in pair), dist.get_rank()
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))(rank)
    wanted = vllm_rules_layout(model, rollout)(rank)
    itemsize = min(dtype.itemsize for dtype in dtypes)
    plan = plan_sync(model, train, rollout, itemsize=itemsize, budget_bytes=budget_bytes)
    sources = {name: buffer.to(device) for name, buffer in allocate_buffers(stored, dtypes[0], PAD).items()}
    destinations = {name: buffer.to(device) for name, buffer in allocate_buffers(wanted, dtypes[1], PAD).items()}
    executor = ReshardExecutor(plan, rank, sources, destinations, group, budget_bytes)
    equal = True
    for scale in (1.0, 2.0):
        patterns = _patterns(model, scale)
        scatter_logical(stored, patterns, sources)
        stats = executor.run()
        expected = _expected(wanted, {n: p.to(dtypes[0]) for n, p in patterns.items()}, dtypes[1])
        equal &= all(torch.equal(destinations[name].cpu(), value) for name, value in expected.items())
    return equal, stats.bytes_received, plan.costs[rank].bound_bytes, stats.peak_extra_bytes


@pytest.mark.parametrize("pair", PAIRS)
def test_run_matches_reference(pair: str) -> None:
    world = max(train.world_size if rollout.offset == 0 else 4 for train, rollout in [PAIRS[pair]])
    for equal, received, bound, _ in run_distributed(world, _transfer, pair, 1 << 20, (torch.float32, torch.float32)):
        assert equal
        assert received == bound


@pytest.mark.gpu
def test_run_on_one_gpu_matches_reference() -> None:
    dtypes = (torch.bfloat16, torch.bfloat16)
    ((equal, received, *_),) = run_distributed(1, _transfer, "tp1_to_tp1", 1 << 20, dtypes, "cuda", fresh=True)
    assert equal
    assert received == 0


@pytest.mark.multi_gpu
@pytest.mark.parametrize("budget", [1 << 20, 4096], ids=["one_round", "many_rounds"])
@pytest.mark.parametrize("pair", [name for name, (train, _) in PAIRS.items() if train.world_size == 2 and "apart" not in name])
def test_run_over_nccl_matches_reference(pair: str, budget: int) -> None:
    dtypes = (torch.bfloat16, torch.bfloat16)
    for equal, received, bound, _ in run_distributed(2, _transfer, pair, budget, dtypes, "cuda", fresh=True):
        assert equal
        assert received == bound


def _shared_memory(pair: str, settings: str) -> tuple[bool, bool, str]:
    """A transfer between processes of one GPU, a parameter that moves, another transfer; all equal, no staging, summary."""
    torch.cuda.memory._set_allocator_settings(settings)
    train, rollout = PAIRS[pair]
    model, rank = tiny_model(), dist.get_rank()
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))(rank)
    wanted = vllm_rules_layout(model, rollout)(rank)
    plan = plan_sync(model, train, rollout, itemsize=2)
    with torch.device("cuda:0"):
        sources = allocate_buffers(stored, torch.bfloat16, PAD)
        destinations = allocate_buffers(wanted, torch.bfloat16, PAD)
    executor = ReshardExecutor(plan, rank, sources, destinations, dist.group.WORLD, 1 << 20)
    equal = True
    for scale in (1.0, 2.0, 3.0):
        patterns = {name: pattern.to("cuda:0") for name, pattern in _patterns(model, scale).items()}
        scatter_logical(stored, patterns, sources)
        stats = executor.run()
        expected = _expected(wanted, {n: p.to(torch.bfloat16).cpu() for n, p in patterns.items()}, torch.bfloat16)
        equal &= all(torch.equal(destinations[name].cpu(), value) for name, value in expected.items())
        if rank == 0:
            for buffer in sources.values():
                buffer.data = buffer.data.clone()
    return equal, stats.peak_extra_bytes == 0, executor.transport_summary


@pytest.mark.gpu
@pytest.mark.parametrize("pair", ["tp2_to_tp1dp2", "pp2_to_tp2"])
def test_run_reads_the_memory_of_another_process(pair: str) -> None:
    for equal, unstaged, summary in run_distributed(2, _shared_memory, pair, "expandable_segments:False", fresh=True):
        assert equal and unstaged
        assert "through shared GPU memory" in summary


@pytest.mark.gpu
def test_run_sends_messages_where_memory_cannot_be_shared() -> None:
    for equal, unstaged, summary in run_distributed(2, _shared_memory, "tp2_to_tp1dp2", "expandable_segments:True", fresh=True):
        assert equal and not unstaged
        assert "by messages (the weights are in expandable segments" in summary


def test_run_invariant_to_budget() -> None:
    budget = 4096
    for equal, *_, extra in run_distributed(2, _transfer, "tp2_to_tp1dp2", budget, (torch.float32, torch.float32)):
        assert equal
        assert extra <= budget


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)], ids=["down", "up"])
def test_run_casts_to_destination(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    answers = run_distributed(2, _transfer, "tp2_to_tp1dp2", 1 << 20, dtypes)
    assert all(equal for equal, *_ in answers)


def _with_idle_rank() -> tuple[int, int]:
    train, rollout = PAIRS["tp2_to_tp1dp2"]
    model, rank = tiny_model(), dist.get_rank()
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))(rank)
    wanted = vllm_rules_layout(model, rollout)(rank)
    sources, destinations = allocate_buffers(stored, torch.float32, PAD), allocate_buffers(wanted, torch.float32, PAD)
    executor = ReshardExecutor(plan_sync(model, train, rollout), rank, sources, destinations, dist.group.WORLD, 1 << 20)
    return executor.run().bytes_received, len(destinations)


def test_run_includes_idle_ranks() -> None:
    """The third rank of the group belongs to neither layout."""
    assert run_distributed(3, _with_idle_rank)[2] == (0, 0)


def _different_plans() -> str:
    train, rollout = PAIRS["tp2_to_tp2"]
    rank = dist.get_rank()
    model = tiny_model(layers=2 + 2 * rank)
    plan = plan_sync(model, train, rollout)
    with pytest.raises(ValueError) as error:
        ReshardExecutor(plan, rank, {}, {}, dist.group.WORLD, 1 << 20)
    return str(error.value)


def test_executor_rejects_different_plans() -> None:
    for message in run_distributed(2, _different_plans):
        assert "different reshard plans" in message


def _missing_parameter() -> str:
    train, rollout = PAIRS["tp2_to_tp1dp2"]
    model, rank = tiny_model(), dist.get_rank()
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))(rank)
    wanted = vllm_rules_layout(model, rollout)(rank)
    sources, destinations = allocate_buffers(stored, torch.float32, PAD), allocate_buffers(wanted, torch.float32, PAD)
    if rank == 1:
        del destinations["model.layers.3.mlp.down_proj.weight"]
    with pytest.raises(ValueError) as error:
        ReshardExecutor(plan_sync(model, train, rollout), rank, sources, destinations, dist.group.WORLD, 1 << 20)
    return str(error.value)


def test_executor_rejects_missing_parameter_on_all_ranks() -> None:
    for message in run_distributed(2, _missing_parameter):
        assert message.startswith("rank 1 of the group: the plan needs parameter 'model.layers.3.mlp.down_proj.weight'")


def _damaged_sync() -> str:
    train, rollout = PAIRS["tp2_to_tp1dp2"]
    model, rank = tiny_model(), dist.get_rank()
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))(rank)
    wanted = vllm_rules_layout(model, rollout)(rank)
    sources, destinations = (
        _expected(stored, _patterns(model, 1.0), torch.float32),
        allocate_buffers(wanted, torch.float32, PAD),
    )
    ReshardExecutor(plan_sync(model, train, rollout), rank, sources, destinations, dist.group.WORLD, 1 << 20).run()
    arguments = (logical_tensors(model), stored, sources, wanted, destinations, dist.group.WORLD)
    verify_transfer(*arguments)
    victim = next(f for f in wanted if f.tensor.endswith("1.mlp.up_proj.weight"))
    view = fragment_view(victim, destinations[victim.buffer])
    view.copy_(view.flip(0))
    with pytest.raises(ValueError) as error:
        verify_transfer(*arguments)
    return str(error.value)


def test_verify_transfer_rejects_permuted_rows() -> None:
    for message in run_distributed(2, _damaged_sync):
        assert "model.layers.1.mlp.up_proj.weight" in message
