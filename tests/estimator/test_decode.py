"""Work of a rollout by hand."""

from __future__ import annotations

from dataclasses import replace

from megatron_rl.estimator.catalogue import find_gpu
from megatron_rl.estimator.communication import all_reduce_s
from megatron_rl.estimator.decode import EngineLoad, engine_load, read_bytes, rollout_messages_s, rollout_work
from megatron_rl.estimator.deployment import EngineSetup
from megatron_rl.estimator.flops import decode_flops
from tests.estimator.shapes import small_model, small_workload
from tests.estimator.test_memory import COUNT

H200 = find_gpu("H200")
LOAD = EngineLoad(tensor=1, sequences=4, prefilled_prompts=2, prompt_tokens=10, response_tokens=6, iterations=8)


def test_read_bytes_matches_hand_computed() -> None:
    # Weights (tied: all of them) in each of 8 iterations; the cache of 10 + 3 tokens, 32 bytes each, for 24 answered tokens.
    assert read_bytes(small_model(), LOAD) == 8 * 2 * COUNT + 4 * 6 * 13 * 32


def test_read_bytes_leaves_out_the_embedding_lookup() -> None:
    untied, tied = read_bytes(small_model(tie_word_embeddings=False), LOAD), read_bytes(small_model(), LOAD)
    assert untied == tied


def test_rollout_work_matches_hand_computed() -> None:
    found = rollout_work(small_model(), LOAD)
    layers = 2 * (64 + 32 + 32 + 64 + 384)
    # Two prompts of ten tokens, no head; causal attention of 4 heads of 2 over two layers.
    assert found.matmul_flops == 2 * layers * 20
    assert found.attention_flops == 2 * (2 * 4 * 4) * 10**2
    assert found.decode_flops == 24 * decode_flops(small_model(), 13)
    assert (found.decode_bytes, found.iterations, found.sampled_tokens) == (read_bytes(small_model(), LOAD), 8, 24)


def test_rollout_messages_s_matches_hand_computed() -> None:
    pair = replace(LOAD, tensor=2)
    # Two layers with two all-reduces of 3 tokens of 8 elements, in each of 8 iterations.
    once = all_reduce_s(3 * 8 * 2, 2, H200.intra_node, 0.5)
    assert rollout_messages_s(small_model(), H200, pair, 0.5) == 8 * 2 * 2 * once
    assert rollout_messages_s(small_model(), H200, LOAD, 0.5) == 0


def engine(**changes: object) -> EngineSetup:
    fields = {"tensor": 1, "data": 2, "max_num_seqs": 4, "max_num_batched_tokens": 32, "kv_cache_bytes": 0}
    return EngineSetup(**(fields | changes))  # type: ignore[arg-type]


def test_engine_load_matches_hand_computed() -> None:
    workload = small_workload(prompts_per_step=5, samples_per_prompt=2, max_response_tokens=20)
    load = engine_load(workload, engine(), running=4)
    assert (load.sequences, load.prefilled_prompts, load.iterations) == (6, 3, 24)  # six answers of 16 in four seats
    assert engine_load(workload, engine(), running=6).iterations == 20  # the longest answer
    assert engine_load(workload, engine(prefix_caching=False), running=6).prefilled_prompts == 6
    assert engine_load(replace(workload, longest_response_tokens=18.5), engine(), running=6).iterations == 18.5
