"""Memory of tiny shapes against byte counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_rl.estimator.activations import stage_activation_bytes
from megatron_rl.estimator.deployment import Deployment, Offload
from megatron_rl.estimator.engine_memory import kv_bytes_per_token, wanted_kv_bytes, workspace_bytes
from megatron_rl.estimator.memory import CPU_CHUNK_ELEMENTS, LOGIT_WORKSPACE_BYTES, head_bytes, phase_memory
from megatron_rl.estimator.memory_part import PhaseMemory
from megatron_rl.estimator.parameters import total_parameters
from megatron_rl.parallel.layout import ParallelLayout
from tests.estimator.shapes import actor_on, small_deployment, small_model, small_workload

# Two layers of q 8x8, k and v 8x4, o 8x8, three 8x16 and two norms of 8; a tied vocabulary of 64; the final norm.
COUNT = 2 * (64 + 32 + 32 + 64 + 384 + 16) + 64 * 8 + 8


def phases(deployment: Deployment) -> dict[str, PhaseMemory]:
    return {p.phase: p for p in phase_memory(deployment, context_bytes=100, cuda_graph_bytes=10)}


def sizes(phase: PhaseMemory) -> dict[str, int]:
    return {f"{part.role} {part.kind}": part.size_bytes for part in phase.parts}


def test_total_parameters_matches_hand_computed() -> None:
    assert total_parameters(small_model()) == COUNT


def test_phase_memory_of_the_update_matches_hand_computed() -> None:
    found = sizes(phases(small_deployment())["update actor"])
    kept = stage_activation_bytes(
        small_model(), actor_on(ParallelLayout()), 0, weight_bytes=2, on_gpu=True, num_micro_batches=1
    )
    # Head: final norm f32 + normed + output; logits f32 + bf16; gradients of the weight, and of the hidden states f32 + bf16.
    head = 32 * 8 * (4 + 2 + 2) + 32 * 64 * (4 + 2) + 64 * 8 * 2 + 32 * 8 * (4 + 2)
    assert found == {
        "process context": 100,
        "engine weights": 2 * COUNT,
        "engine KV cache": 1000,
        "engine CUDA graphs": 10,
        "actor weights": 2 * COUNT,
        "actor gradients": 4 * COUNT,
        "actor optimizer": 12 * COUNT,
        "actor working memory": kept + head,
    }


def test_phase_memory_of_the_rollout_matches_hand_computed() -> None:
    found = sizes(phases(small_deployment())["rollout"])
    assert found["engine workspace"] == max(32 * 2 * (3 * 16 + 4 * 8), 4 * 64 * 4 * 3)
    assert "actor working memory" not in found and "engine transfer budget" not in found


def test_phase_memory_shards_the_optimizer_over_data_parallel_ranks_only() -> None:
    alone = sizes(phases(small_deployment())["update actor"])
    four = sizes(phases(small_deployment(ParallelLayout(data=4)))["update actor"])
    assert four["actor optimizer"] == alone["actor optimizer"] // 4
    assert four["actor gradients"] == alone["actor gradients"]


def test_phase_memory_in_f32_has_no_master_copy() -> None:
    found = sizes(phases(small_deployment(weight_bytes=4))["update actor"])
    assert (found["actor weights"], found["actor optimizer"]) == (4 * COUNT, 8 * COUNT)


def test_phase_memory_counts_each_role_once() -> None:
    roles = tuple(
        actor_on(ParallelLayout(), name=name, trained=name != "reference") for name in ("actor", "critic", "reference")
    )
    found = sizes(phases(small_deployment(roles=roles))["update critic"])
    assert found["critic weights"] == 2 * (COUNT + 8)  # tied: the value head is all a critic adds
    assert found["reference weights"] == 2 * COUNT
    assert "reference gradients" not in found and "actor working memory" not in found


RESIDENT = {
    "none": {"weights", "gradients", "optimizer"},
    "sleep": {"weights", "gradients", "optimizer"},
    "swap": {"weights"},
    "host_optimizer": {"weights"},
}
OFFLOADS: tuple[Offload, ...] = ("none", "sleep", "swap", "host_optimizer")


@pytest.mark.parametrize("offload", RESIDENT)
def test_offload_decides_what_of_the_actor_stays_during_the_rollout(offload: Offload) -> None:
    rollout = phases(small_deployment(offload=offload))["rollout"]
    assert {part.kind for part in rollout.parts if part.role == "actor"} == RESIDENT[offload]


def test_sleeping_engine_keeps_its_graphs_only() -> None:
    update = phases(small_deployment(offload="sleep"))["update actor"]
    assert {part.kind for part in update.parts if part.role == "engine"} == {"CUDA graphs"}


def test_head_bytes_never_stores_all_logits() -> None:
    deployment = small_deployment(model=small_model(vocab_size=2**20))
    role = actor_on(ParallelLayout(), micro_batch_tokens=4096)
    assert head_bytes(deployment, role, with_gradients=False) == 4096 * 8 * 8 + LOGIT_WORKSPACE_BYTES


def test_head_bytes_on_cpu_matches_hand_computed() -> None:
    deployment = small_deployment(weight_bytes=4, on_gpu=False)
    expected = 32 * 8 * (4 + 4 + 4) + 3 * 32 * 64 * 4 + 64 * 8 * (4 + 4) + 32 * 8 * 4
    assert head_bytes(deployment, actor_on(ParallelLayout()), with_gradients=True) == expected


def test_logit_workspaces_are_the_kernels() -> None:
    pytest.importorskip("triton")
    from kernels import linear_logprob
    from kernels.linear_logprob import tiles

    assert (LOGIT_WORKSPACE_BYTES, CPU_CHUNK_ELEMENTS) == (tiles.WORKSPACE_BYTES, linear_logprob.CPU_CHUNK_ELEMENTS)


@pytest.mark.parametrize("tensor,heads", [(1, 2), (2, 1), (4, 1)])
def test_kv_bytes_per_token_matches_hand_computed(tensor: int, heads: int) -> None:
    # Two layers, key and value, heads of 2 elements of 2 bytes; a head is never cut.
    assert kv_bytes_per_token(small_model(), tensor, 2) == 2 * 2 * heads * 2 * 2


def test_wanted_kv_bytes_matches_hand_computed() -> None:
    engine = small_deployment().engine
    assert engine is not None
    # Four seats of 16 + 17 tokens, which take three blocks of 16.
    workload = small_workload(max_response_tokens=17)
    assert wanted_kv_bytes(small_model(), workload, engine, 2) == 4 * 48 * 32


def test_workspace_bytes_is_the_larger_of_body_and_sampler() -> None:
    engine = small_deployment().engine
    assert engine is not None
    assert workspace_bytes(small_model(), replace(engine, max_num_batched_tokens=1), 2) == 4 * 64 * 4 * 3


@settings(deadline=None, max_examples=60)
@given(
    data=st.sampled_from([1, 2, 4]),
    tokens=st.integers(1, 500),
    more=st.integers(0, 500),
    recompute=st.sampled_from(["none", "selective", "full"]),
    offload=st.sampled_from(OFFLOADS),
)
def test_phase_memory_is_monotonic(data: int, tokens: int, more: int, recompute: str, offload: Offload) -> None:
    """More tokens never need less; more data-parallel ranks, recomputation and offloading never need more."""

    def peak(data: int, tokens: int, recompute: str, offload: Offload) -> int:
        layout = ParallelLayout(data=data)
        role = actor_on(layout, micro_batch_tokens=tokens, recompute=recompute)
        return max(p.total_bytes for p in phases(small_deployment(layout, roles=(role,), offload=offload)).values())

    base = peak(data, tokens, recompute, offload)
    assert peak(data, tokens + more, recompute, offload) >= base
    assert peak(2 * data, tokens, recompute, offload) <= base
    assert all(peak(data, tokens, recompute, later) <= base for later in OFFLOADS[OFFLOADS.index(offload) :])
