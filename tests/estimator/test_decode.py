"""Rollout seconds by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatron_rl.estimator.catalogue import find_gpu
from megatron_rl.estimator.coefficients import Coefficient, Coefficients
from megatron_rl.estimator.decode import EngineLoad, engine_load, hardware_s, read_bytes, rollout_s
from megatron_rl.estimator.deployment import EngineSetup
from tests.estimator.shapes import small_model, small_workload
from tests.estimator.test_memory import COUNT

H200 = find_gpu("H200")
LOAD = EngineLoad(tensor=1, sequences=4, prefilled_prompts=2, prompt_tokens=10, response_tokens=6, iterations=8)
COEFFICIENTS = replace(
    Coefficients(),
    prefill_frac=Coefficient(value=0.5),
    memory_frac=Coefficient(value=0.5),
    decode_iteration_s=Coefficient(value=3.0),
    decode_token_s=Coefficient(value=0.25),
)


def test_read_bytes_matches_hand_computed() -> None:
    # Weights (tied: all of them) in each of 8 iterations; the cache of 10 + 3 tokens, 32 bytes each, for 24 answered tokens.
    assert read_bytes(small_model(), LOAD) == 8 * 2 * COUNT + 4 * 6 * 13 * 32


def test_read_bytes_leaves_out_the_embedding_lookup() -> None:
    untied, tied = read_bytes(small_model(tie_word_embeddings=False), LOAD), read_bytes(small_model(), LOAD)
    assert untied == tied


def test_hardware_s_matches_hand_computed() -> None:
    layers = 2 * (64 + 32 + 32 + 64 + 384)
    prefill = 2 * (2 * (layers + 8) * 10 + 2 * 4 * 4 * 10**2) / (989e12 * 0.5)
    reading = read_bytes(small_model(), LOAD) / (4.8e12 * 0.5)
    assert hardware_s(small_model(), H200, LOAD, COEFFICIENTS) == pytest.approx(prefill + reading, rel=1e-12)


def test_rollout_s_adds_iterations_and_tokens() -> None:
    overhead = rollout_s(small_model(), H200, LOAD, COEFFICIENTS) - hardware_s(small_model(), H200, LOAD, COEFFICIENTS)
    assert overhead == pytest.approx(8 * 3.0 + 24 * 0.25, rel=1e-12)


def engine(**changes: object) -> EngineSetup:
    fields = {"tensor": 1, "data": 2, "max_num_seqs": 4, "max_num_batched_tokens": 32, "kv_cache_bytes": 0}
    return EngineSetup(**(fields | changes))  # type: ignore[arg-type]


def test_engine_load_matches_hand_computed() -> None:
    workload = small_workload(prompts_per_step=5, samples_per_prompt=2, max_response_tokens=20)
    load = engine_load(workload, engine(), running=4)
    assert (load.sequences, load.prefilled_prompts, load.iterations) == (6, 3, 24)  # six answers of 16 in four seats
    assert engine_load(workload, engine(), running=6).iterations == 20  # the longest answer
    assert engine_load(workload, engine(prefix_caching=False), running=6).prefilled_prompts == 6
