"""A configured run on cards that need not be here, against the search that is left no choice."""

from __future__ import annotations

import pytest

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose
from megatron_rl.estimator.catalogue import find_gpu
from megatron_rl.estimator.configured_strategy import configured_strategy
from megatron_rl.estimator.estimate import Request, estimate

H200 = find_gpu("H200")
LAYOUT = ("actor.parallel.tensor=2", "actor.parallel.sequence_parallel=true", "rollout.tensor_parallel_size=2")
REST = ("actor.ppo_max_token_len_per_gpu=8192", "rollout.kv_cache_gib=20")
RUN = ["model=qwen2_7b", "algorithm=grpo", "data.train_batch_size=32", *LAYOUT, *REST]


def test_configured_strategy_matches_a_search_without_choice() -> None:
    config, typed = compose(RUN), frozenset(text.partition("=")[0] for text in (*LAYOUT, *REST))
    strategy = configured_strategy(config, H200, 4)
    pinned = frozenset({"actor.parallel.pipeline", "actor.recompute.granularity"})
    answer = estimate(config, Request(gpu="H200", num_gpus=4, typed=typed | pinned))
    best = answer.recommended_strategy
    assert best.label.startswith("TP2 PP1 DP2, engine TP2 x DP2, micro-batch 8192")
    assert strategy.step_s == pytest.approx(best.step_s, rel=1e-9)
    assert strategy.peak.total_bytes / 2**30 == pytest.approx(best.peak_mem_gib, rel=1e-9)


def test_configured_strategy_counts_offloading_as_configured() -> None:
    offloaded = configured_strategy(compose([*RUN, "actor.optimizer_offload=true"]), H200, 4)
    kept = configured_strategy(compose(RUN), H200, 4)
    assert offloaded.step_s > kept.step_s
    rollouts = [next(p for p in s.memory if p.phase == "rollout").total_bytes for s in (offloaded, kept)]
    assert rollouts[0] < rollouts[1]


def test_configured_strategy_gives_the_cache_its_share_of_the_card() -> None:
    config = compose([*RUN, "rollout.kv_cache_gib=null", "rollout.gpu_memory_utilization=0.3"])
    engine = configured_strategy(config, H200, 4).deployment.engine
    assert engine is not None and 0.2 * H200.memory_bytes < engine.kv_cache_bytes < 0.3 * H200.memory_bytes


def test_configured_strategy_rejects_a_layout_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="tensor"):
        configured_strategy(compose(["model=qwen2_7b", "actor.parallel.tensor=3"]), H200, 4)


def test_configured_strategy_scores_the_actor_only_where_it_must() -> None:
    def scored(*overrides: str) -> bool:
        times = configured_strategy(compose([*RUN, *overrides]), H200, 4).times
        return any((part.phase, part.role) == ("scoring", "actor") for part in times)

    assert not scored()  # one optimizer step a rollout: the update's own forward pass gives the log-probs
    assert scored("actor.ppo_epochs=2") and scored("actor.reuse_logprobs=false")
