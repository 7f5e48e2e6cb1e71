"""Plans that leave weights where they are: hand-sized cases, and transfers in which destinations are views of sources."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout, padded_vocab_size
from megatron_rl.resharding.aliasing import alias_report, summarise_report, with_aliases
from megatron_rl.resharding.executor import ReshardExecutor, aliased_runs
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.plan import Alias
from megatron_rl.resharding.verify import allocate_buffers, fragment_view, scatter_logical, verify_transfer
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.names import logical_tensors
from tests.resharding.shapes import plan_sync, tiny_model
from tests.support.distributed import run_distributed

PAIRS = {
    "tp2_to_tp2": (ParallelLayout(tensor=2), RolloutLayout(tensor=2)),
    "tp1dp2_to_tp2": (ParallelLayout(data=2), RolloutLayout(tensor=2)),
    "pp2_to_tp1dp2": (ParallelLayout(pipeline=2), RolloutLayout(data=2)),
}
LAYER = "model.layers.0."


@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3"])
def test_with_aliases_copies_nothing_between_equal_layouts(family: str) -> None:
    plan = plan_sync(tiny_model(family, groups=4), ParallelLayout(tensor=2, data=2), RolloutLayout(tensor=2, data=2))
    shared = with_aliases(plan)
    assert not shared.copies and not shared.rounds
    assert shared.copied_bytes == 0
    assert shared.aliased_bytes == plan.copied_bytes
    assert shared.hash != plan.hash


def test_with_aliases_takes_rows_out_of_a_longer_parameter() -> None:
    """Rank 1 of TP2 reads rows 128.. of the whole embedding of 251 rows of 16."""
    shared = with_aliases(plan_sync(tiny_model(), *PAIRS["tp1dp2_to_tp2"]))
    alias = shared.aliases[1]["model.embed_tokens.weight"]
    assert alias == Alias("embedding.word_embeddings.weight", 128 * 16, (251 - 128) * 16)


def test_alias_report_matches_hand_computed() -> None:
    report = alias_report(with_aliases(plan_sync(tiny_model(), *PAIRS["tp1dp2_to_tp2"])), 0)
    assert report[LAYER + "self_attn.qkv_proj.weight"] == "made of 3 separate runs"
    assert report[LAYER + "mlp.gate_up_proj.weight"] == "made of 2 separate runs"
    assert report[LAYER + "mlp.down_proj.weight"] == "the source's elements are strided"
    assert LAYER + "input_layernorm.weight" not in report
    stages = alias_report(with_aliases(plan_sync(tiny_model(), *PAIRS["pp2_to_tp1dp2"])), 0)
    assert stages["model.layers.3.input_layernorm.weight"] == "parts come from other ranks"
    assert LAYER + "mlp.gate_up_proj.weight" not in stages


def test_alias_report_of_a_copying_plan_names_the_setting() -> None:
    report = alias_report(plan_sync(tiny_model(), *PAIRS["tp2_to_tp2"]), 0)
    assert set(report.values()) == {"weight_sync.alias=false, or the dtypes differ"}
    assert summarise_report(report).count("\n") == 0


def _shared_transfer(pair: str) -> tuple[bool, int, str]:
    """Two rounds of values through a plan with aliases; (right, bytes copied and received, error once a source moved)."""
    (train, rollout), model, rank = PAIRS[pair], tiny_model(), dist.get_rank()
    stored = megatron_layout(model, train, padded_vocab_size(model.vocab_size, train.tensor))(rank)
    wanted = vllm_rules_layout(model, rollout)(rank)
    plan = with_aliases(plan_sync(model, train, rollout))
    sources, destinations = allocate_buffers(stored, torch.float32, 0.0), allocate_buffers(wanted, torch.float32, -7.0)
    for name, run in aliased_runs(plan, rank, sources).items():
        destinations[name] = run[: destinations[name].numel()]
    executor = ReshardExecutor(plan, rank, sources, destinations, dist.group.WORLD, 1 << 20)
    tensors = logical_tensors(model)
    right = True
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        values = {t.name: torch.randn(t.shape, generator=generator) for t in tensors}
        scatter_logical(stored, values, sources)
        stats = executor.run()
        for f in wanted:
            box = tuple(slice(a, b) for a, b in zip(f.start, f.stop, strict=True))
            right &= torch.equal(fragment_view(f, destinations[f.buffer]), values[f.tensor][box])
        verify_transfer(tensors, stored, sources, wanted, destinations, dist.group.WORLD)
    victim = next(iter(plan.aliases[rank].values())).source
    sources[victim] = sources[victim].clone()
    with pytest.raises(ValueError) as error:
        executor.run()
    return right, stats.bytes_copied + stats.bytes_received, str(error.value)


@pytest.mark.parametrize("pair", PAIRS)
def test_run_with_aliases_matches_reference(pair: str) -> None:
    for right, moved, error in run_distributed(2, _shared_transfer, pair):
        assert right
        assert (moved == 0) == (pair == "tp2_to_tp2")
        assert "does not share the storage of" in error
