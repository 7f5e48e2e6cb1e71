"""What a step's seconds and documents amount to: rates, shares and bounds, against hand-computed values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.step_figures import (
    Ceilings,
    Document,
    Spread,
    decode_read_bytes,
    num_iterations,
    other_share,
    phase_figures,
    read_documents,
    recomputed_flops,
)
from megatron_rl.config.loading import compose
from megatron_rl.config.run import RunConfig
from megatron_rl.config.training import RecomputeConfig
from megatron_rl.config.world import with_world
from megatron_rl.estimator.flops import forward_flops

RECORDS = [
    {"step": 2.0, "timing_s/step": 10.0, "timing_s/gen": 4.0, "timing_s/ref": 1.0, "timing_s/update_actor": 4.5},
    {"step": 3.0, "timing_s/step": 12.0, "timing_s/gen": 5.0, "timing_s/ref": 1.0, "timing_s/update_actor": 5.4},
]
DOCUMENTS = {step: [Document(3, 4), Document(3, 2)] for step in (2, 3)}
CEILINGS = Ceilings(matmul_flops_per_s=1e9, copy_bytes_per_s=1e6)


def tiny_config(*overrides: str) -> RunConfig:
    return with_world(compose(["model=tiny", "algorithm=grpo", "rollout.n=1", "trainer.device=cpu", *overrides]), 1, 0)


def figures(**changes: float):
    records = [{**record, **changes} for record in RECORDS]
    found = phase_figures(
        tiny_config(), records, DOCUMENTS, num_ranks=1, ceilings=CEILINGS, peaks_gib={"gen": 1.5, "update_actor": 2.5}
    )
    return {one.phase: one for one in found}


def test_phase_figures_match_hand_computed() -> None:
    found = figures()
    update, flops = found["update_actor"], 3 * forward_flops(tiny_config().model, [7, 5])
    assert update.seconds == Spread(4.95, 4.5, 5.4)
    assert update.share_frac == pytest.approx(4.95 / 11)
    assert update.tokens_per_s == pytest.approx((12 / 4.5 + 12 / 5.4) / 2)
    assert update.mfu == pytest.approx(flops / 1e9 * (1 / 4.5 + 1 / 5.4) / 2)
    assert (update.mfu_with_recompute, update.peak_gib) == (None, 2.5)
    assert found["gen"].tokens_per_s == pytest.approx((6 / 4 + 6 / 5) / 2)
    assert found["ref"].mfu == pytest.approx(flops / 3 / 1e9)
    assert list(found) == ["update_actor", "gen", "ref"]


def test_role_that_did_not_run_is_left_out() -> None:
    found = figures(**{"timing_s/old_log_prob": 2e-5, "timing_s/update_weights": 2e-5})
    assert "old_log_prob" not in found
    assert found["update_weights"].mfu is None


def test_other_share_matches_hand_computed() -> None:
    assert other_share(RECORDS) == Spread(pytest.approx(0.05), pytest.approx(0.05), pytest.approx(0.05))


@pytest.mark.parametrize(
    ("responses", "seats", "iterations"),
    [([3, 1, 1], 2, 3), ([3, 1, 1, 4], 2, 6), ([2, 5], 8, 5)],
    ids=["refill", "tail", "idle"],
)
def test_num_iterations_matches_hand_computed(responses: list[int], seats: int, iterations: int) -> None:
    assert num_iterations(responses, seats) == iterations


def test_decode_read_bytes_match_hand_computed() -> None:
    config = tiny_config("model.tie_word_embeddings=true", "rollout.max_num_seqs=8")
    hidden, inner, layers, vocab = 128, 256, 4, 320  # padded to 64 rows
    layer = hidden * (hidden + 2 * 64) + hidden * hidden + 3 * hidden * inner + (hidden + 2 * 64) + 2 * hidden
    weights = vocab * hidden + layers * layer + hidden
    # Tokens 1..4 behind 3, and 1..2 behind 3: cached 3 + 4 + 5 + 6 and 3 + 4, each 2 x 64 numbers a layer.
    cached = (3 + 4 + 5 + 6 + 3 + 4) * layers * 2 * 64
    assert decode_read_bytes(config, DOCUMENTS[2]) == 4 * (4 * weights + cached)


def test_recomputed_flops_match_hand_computed() -> None:
    model, lengths = tiny_config().model, [7, 5]
    layers = forward_flops(model, lengths, "value")
    assert recomputed_flops(model, lengths, RecomputeConfig()) == 0
    assert recomputed_flops(model, lengths, RecomputeConfig(granularity="full")) == layers
    assert recomputed_flops(model, lengths, RecomputeConfig(granularity="full", method="block", num_layers=1)) == layers / 4
    selective = recomputed_flops(model, lengths, RecomputeConfig(granularity="selective"))
    assert selective == 2 * 4 * 4 * 32 * (49 + 25) / 1


def test_read_documents_keeps_batch_order(tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    lines = [{"step": 1, "prompt_length": 3, "response_length": n} for n in (4, 2)]
    lines.append({"step": 2, "prompt_length": 5, "response_length": 0})
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_documents(samples) == {1: [Document(3, 4), Document(3, 2)], 2: [Document(5, 0)]}
