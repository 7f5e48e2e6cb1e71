"""Which layouts are possible, which fit, and what the user may fix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_rl.estimator.catalogue import GIB, find_gpu
from megatron_rl.estimator.coefficients import Coefficients
from megatron_rl.estimator.deployment import Workload
from megatron_rl.estimator.offloading import offload_of
from megatron_rl.estimator.presets import preset_model
from megatron_rl.estimator.strategies import Pins, Pool, RoleDegrees, Search, Strategy
from tests.estimator.shapes import small_workload

WORK = small_workload(
    prompts_per_step=32, prompt_tokens=512, response_tokens=512, max_prompt_tokens=512, max_response_tokens=512
)


def search(
    model: str = "qwen2_7b", gpu: str = "H200", num_gpus: int = 4, pins: Pins | None = None, work: Workload = WORK
) -> Search:
    return Search(
        model=preset_model(model),
        workload=work,
        pool=Pool(gpu=find_gpu(gpu), num_gpus=num_gpus, roles=("actor",)),
        coefficients=Coefficients(),
        pins=pins or Pins(),
    )


def layouts(strategies: list[Strategy]) -> set[tuple[int, int, int]]:
    places = [strategy.deployment.roles[0].layout for strategy in strategies]
    return {(layout.tensor, layout.pipeline, layout.data) for layout in places}


def test_search_finds_every_layout_of_four_cards() -> None:
    found, rejected = search().run()
    assert layouts(found) == {(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)}
    assert rejected == []


def test_search_rejects_what_does_not_divide() -> None:
    _, rejected = search(num_gpus=16).run()
    reasons = {one.label: one.reason for one in rejected}
    assert "legal: [1, 2, 4]" in reasons["TP8"]  # four key/value heads
    assert reasons["TP1 PP8"] == "8 stages do not divide 28 layers"


def test_search_rejects_more_replicas_than_samples() -> None:
    few = small_workload(prompts_per_step=2)
    _, rejected = search(work=few).run()
    assert {one.label: one.reason for one in rejected}["TP1 PP1 DP4"] == "only 2 samples a step"


def test_search_keeps_what_the_user_fixed() -> None:
    pins = Pins(tensor=2, pipeline=1, rollout_tensor=4, recompute="full", micro_batch_tokens=2048, kv_cache_bytes=GIB)
    found, _ = search(pins=pins).run()
    for strategy in found:
        role, engine = strategy.deployment.roles[0], strategy.deployment.engine
        assert engine is not None
        assert (role.layout.tensor, role.layout.pipeline, role.recompute, role.micro_batch_tokens) == (2, 1, "full", 2048)
        assert (engine.tensor, engine.kv_cache_bytes) == (4, GIB)


def test_search_gives_the_cache_what_it_wants_and_no_more() -> None:
    found, _ = search(pins=Pins(tensor=1, pipeline=1, rollout_tensor=1)).run()
    engine = found[0].deployment.engine
    assert engine is not None
    # Eight samples an engine, 64 blocks of 16 tokens; 28 layers, key and value, 4 heads of 128, bf16.
    assert engine.kv_cache_bytes == 8 * 64 * 16 * 28 * 2 * 4 * 128 * 2


def test_search_makes_no_micro_batch_larger_than_a_ranks_share() -> None:
    found, _ = search(work=replace(WORK, prompts_per_step=16, actor_optimizer_steps=2)).run()
    sizes = {s.deployment.roles[0].layout.data: s.deployment.roles[0].micro_batch_tokens for s in found}
    assert sizes == {1: 8 * 1024, 2: 4 * 1024, 4: 2 * 1024}


def test_search_on_a_smaller_card_cuts_smaller_and_recomputes() -> None:
    def lightest(gpu: str) -> Strategy:
        found, _ = search("qwen2_5_1_5b", gpu, 1).run()
        return found[0]

    assert lightest("H200").deployment.roles[0].recompute == "none"
    assert lightest("A100-40GB").deployment.roles[0].micro_batch_tokens < 16384
    assert lightest("L4-24GB").deployment.roles[0].recompute == "full"


@pytest.mark.parametrize("model,gpu", [("qwen2_5_1_5b", "L4-24GB"), ("qwen2_7b", "H100")])
def test_search_prunes_nothing_faster(model: str, gpu: str) -> None:
    """Against every combination: where memory is short, a smaller micro-batch leaves the cache more sequences."""
    work = small_workload(
        prompts_per_step=256, prompt_tokens=1024, response_tokens=3072, max_prompt_tokens=1024, max_response_tokens=3072
    )
    all_sizes = search(model, gpu, work=work)
    found, _ = all_sizes.run()
    for strategy in found:
        layout = strategy.deployment.roles[0].layout
        pins = Pins(tensor=layout.tensor, pipeline=layout.pipeline)
        for size in (16384, 8192, 4096):
            alone = replace(all_sizes, pins=replace(pins, micro_batch_tokens=size), offloads=(offload_of(strategy.deployment),))
            (pinned,), _ = alone.run()
            assert not pinned.fits or strategy.step_s <= pinned.step_s


@pytest.mark.parametrize("gpu", ["L4-24GB", "A100-40GB", "H100", "H200"])
def test_search_never_calls_fitting_what_is_over_the_limit(gpu: str) -> None:
    found, _ = search(gpu=gpu).run()
    for strategy in found:
        assert strategy.fits == all(phase.total_bytes <= strategy.usable_bytes for phase in strategy.memory)


def test_search_keeps_the_layouts_of_other_roles() -> None:
    pins = Pins(tensor=2, critic=RoleDegrees(1, 2), offload="swap")
    pool = Pool(gpu=find_gpu("H200"), num_gpus=4, roles=("actor", "critic"))
    found, _ = replace(search(pins=pins), pool=pool).run()
    for strategy in found:
        critic = strategy.deployment.role("critic")
        assert critic is not None and (critic.layout.tensor, critic.layout.pipeline, critic.layout.data) == (1, 2, 2)
        assert offload_of(strategy.deployment) == "swap"


@pytest.mark.parametrize("rollout_tensor,own_weights", [(1, False), (2, True)])
def test_search_shares_weights_where_the_layouts_agree(rollout_tensor: int, own_weights: bool) -> None:
    found, _ = search(pins=Pins(tensor=1, pipeline=1, rollout_tensor=rollout_tensor)).run()
    parts = [part for strategy in found for phase in strategy.memory for part in phase.parts if part.role == "engine"]
    assert any(part.kind == "weights" for part in parts) == own_weights


def test_strategy_says_what_this_version_cannot_run() -> None:
    found, _ = search().run()
    reasons = {offload_of(strategy.deployment): strategy.untrainable for strategy in found}
    assert reasons["none"] is None and reasons["swap"] is None
    assert reasons["host_optimizer"] == "offload=host_optimizer is not part of this version"
    experts, _ = search("qwen3_30b_a3b").run()
    assert all(strategy.untrainable for strategy in experts)


def test_search_spreads_experts_over_their_ranks() -> None:
    found, _ = search("qwen3_30b_a3b", num_gpus=8).run()
    degrees = {s.deployment.roles[0].layout.expert for s in found if s.deployment.roles[0].layout.pipeline == 1}
    assert degrees == {8}
