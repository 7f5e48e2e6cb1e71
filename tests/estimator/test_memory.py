"""Memory of tiny shapes against byte counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_rl.estimator.activations import stage_activation_bytes
from megatron_rl.estimator.deployment import Deployment, RoleSetup
from megatron_rl.estimator.engine_memory import kv_bytes_per_token, wanted_kv_bytes, workspace_bytes
from megatron_rl.estimator.memory import ProcessMemory, phase_memory
from megatron_rl.estimator.memory_part import PhaseMemory
from megatron_rl.estimator.offloading import OFFLOADS, Offload, offload_of, offloaded_engine, offloaded_role
from megatron_rl.estimator.parameters import total_parameters
from megatron_rl.parallel.layout import ParallelLayout
from tests.estimator.shapes import actor_on, small_deployment, small_model, small_workload

# Two layers of q 8x8, k and v 8x4, o 8x8, three 8x16 and two norms of 8; a tied vocabulary of 64; the final norm.
COUNT = 2 * (64 + 32 + 32 + 64 + 384 + 16) + 64 * 8 + 8


PROCESS = ProcessMemory(context_bytes=100, communicator_bytes=20, engine_bytes=10)


def phases(deployment: Deployment) -> dict[str, PhaseMemory]:
    return {p.phase: p for p in phase_memory(deployment, PROCESS)}


def offloaded(deployment: Deployment, offload: Offload) -> Deployment:
    assert deployment.engine is not None
    roles = tuple(offloaded_role(role, offload) for role in deployment.roles)
    return replace(deployment, roles=roles, engine=offloaded_engine(deployment.engine, offload))


def sizes(phase: PhaseMemory) -> dict[str, int]:
    return {f"{part.role} {part.kind}": part.size_bytes for part in phase.parts}


def test_total_parameters_matches_hand_computed() -> None:
    assert total_parameters(small_model()) == COUNT


def test_phase_memory_of_the_update_matches_hand_computed() -> None:
    found = sizes(phases(small_deployment())["update actor"])
    kept = stage_activation_bytes(
        small_model(), actor_on(ParallelLayout()), 0, weight_bytes=2, on_gpu=True, num_micro_batches=1
    )
    # The norm's input, output and gathered tokens; then logits in bf16 and one f32 tile, the hidden states' gradient in f32
    # and bf16, the weight's. The engine's weights are the actor's.
    head = 3 * 32 * 8 * 2 + 32 * 64 * (2 + 4) + 32 * 8 * (4 + 2) + 64 * 8 * 2
    assert found == {
        "process context": 100,
        "engine KV cache": 1000,
        "engine CUDA graphs and buffers": 10,
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


def test_phase_memory_of_an_engine_with_its_own_weights() -> None:
    deployment = small_deployment()
    assert deployment.engine is not None
    apart = replace(deployment, engine=replace(deployment.engine, aliased=False))
    assert sizes(phases(apart)["rollout"])["engine weights"] == 2 * COUNT
    assert sizes(phases(apart)["switch-over"])["engine transfer budget"] == 256 * 2**20
    assert "engine transfer budget" not in sizes(phases(deployment)["switch-over"])


def test_phase_memory_of_several_gpus_counts_communicators() -> None:
    assert sizes(phases(small_deployment(ParallelLayout(data=2)))["rollout"])["process communicators"] == 20


def test_phase_memory_takes_the_roles_own_precision() -> None:
    role = actor_on(ParallelLayout(), gradient_bytes=2, master_bytes=2, moment_bytes=4)
    found = sizes(phases(small_deployment(roles=(role,)))["update actor"])
    assert (found["actor gradients"], found["actor optimizer"]) == (2 * COUNT, 6 * COUNT)


def test_scoring_holds_offloaded_weights_of_one_role_at_a_time() -> None:
    def role(name: str) -> RoleSetup:
        trained = name != "reference"
        return actor_on(ParallelLayout(), name=name, trained=trained, weights="always" if name == "actor" else "own_phase")

    roles = tuple(role(name) for name in ("actor", "critic", "reference"))
    found = sizes(phases(small_deployment(roles=roles))["scoring"])
    assert ("critic weights" in found) != ("reference weights" in found)


def test_phase_memory_of_an_unfused_adam_step_counts_its_temporaries() -> None:
    role = actor_on(ParallelLayout(), micro_batch_tokens=1)
    fused, plain = (sizes(phases(small_deployment(roles=(role,), fused_adam=fused))["update actor"]) for fused in (True, False))
    assert fused["actor working memory"] < plain["actor working memory"] == 4 * COUNT


RESIDENT = {
    "none": {"weights", "gradients", "optimizer"},
    "sleep": {"weights", "gradients", "optimizer"},
    "swap": {"weights"},
    "host_optimizer": {"weights"},
}


@pytest.mark.parametrize("offload", RESIDENT)
def test_offload_decides_what_of_the_actor_stays_during_the_rollout(offload: Offload) -> None:
    rollout = phases(offloaded(small_deployment(), offload))["rollout"]
    assert {part.kind for part in rollout.parts if part.role == "actor"} == RESIDENT[offload]
    assert offload_of(offloaded(small_deployment(), offload)) == offload


def test_sleeping_engine_keeps_its_graphs_only() -> None:
    update = phases(offloaded(small_deployment(), "sleep"))["update actor"]
    assert {part.kind for part in update.parts if part.role == "engine"} == {"CUDA graphs and buffers"}


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
        deployment = offloaded(small_deployment(layout, roles=(role,)), offload)
        alone = replace(PROCESS, communicator_bytes=0)
        return max(p.total_bytes for p in phase_memory(deployment, alone))

    base = peak(data, tokens, recompute, offload)
    assert peak(data, tokens + more, recompute, offload) >= base
    assert peak(2 * data, tokens, recompute, offload) <= base
    assert all(peak(data, tokens, recompute, later) <= base for later in OFFLOADS[OFFLOADS.index(offload) :])
